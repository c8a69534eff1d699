package kubectl

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/carve-csi/carve/pkg/kubectl/why"
)

// facts collects the input for why.Explain about a Pod of the caller's namespace.
func (p *plugin) facts(ctx context.Context, client kubernetes.Interface, name string) (*why.Facts, error) {
	pod, err := client.CoreV1().Pods(p.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the Pod: %w", err)
	}
	s, err := p.read(ctx, client)
	if err != nil {
		return nil, err
	}
	facts := &why.Facts{Pod: pod, Nodes: s.whyNodes()}
	if facts.PodEvents, err = events(ctx, client, p.namespace, "Pod", name); err != nil {
		return nil, err
	}
	for _, volume := range pod.Spec.Volumes {
		var claim string
		switch {
		case volume.PersistentVolumeClaim != nil:
			claim = volume.PersistentVolumeClaim.ClaimName
		case volume.Ephemeral != nil:
			claim = pod.Name + "-" + volume.Name
		default:
			continue
		}
		one, err := p.claim(ctx, client, claim)
		if err != nil {
			return nil, err
		}
		facts.Claims = append(facts.Claims, *one)
	}
	return facts, nil
}

func (p *plugin) claim(ctx context.Context, client kubernetes.Interface, name string) (*why.Claim, error) {
	result := &why.Claim{Name: name}
	claim, err := orNil(client.CoreV1().PersistentVolumeClaims(p.namespace).Get(ctx, name, metav1.GetOptions{}))
	if err != nil || claim == nil {
		return result, err
	}
	result.Claim = claim
	if class := claim.Spec.StorageClassName; class != nil && *class != "" {
		if result.Class, err = orNil(client.StorageV1().StorageClasses().Get(ctx, *class, metav1.GetOptions{})); err != nil {
			return nil, err
		}
	}
	if volume := claim.Spec.VolumeName; volume != "" {
		if result.Volume, err = orNil(client.CoreV1().PersistentVolumes().Get(ctx, volume, metav1.GetOptions{})); err != nil {
			return nil, err
		}
	}
	if claim.Status.Phase != corev1.ClaimBound {
		if result.Events, err = events(ctx, client, p.namespace, "PersistentVolumeClaim", name); err != nil {
			return nil, err
		}
	}
	return result, nil
}

// orNil returns nil, and no error, for an object that does not exist.
func orNil[T any](object *T, err error) (*T, error) {
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read an object: %w", err)
	}
	return object, nil
}
