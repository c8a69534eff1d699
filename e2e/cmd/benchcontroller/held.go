package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/carve-csi/carve/e2e/carve"
)

const (
	// heldLabel is on PersistentVolumes of volumes that nodes have from the beginning.
	heldLabel = "carve-bench-held"
	// heldBytes is the size of such a volume, an extent.
	heldBytes = 4 << 20
	// heldWriters is how many requests for them are made beside each other.
	heldWriters = 32
)

// held is a volume that a node has from the beginning, as the fake nodes describe it.
type held struct {
	Node  string `json:"node"`
	Name  string `json:"name"`
	Claim string `json:"claim"`
	ID    string `json:"id"`
	Class string `json:"class"`
	Group string `json:"group"`
}

// bindHeld makes PersistentVolumes, as Carve would have, of so many volumes of each node, and claims
// of these, and waits until all are bound.
func (c *cluster) bindHeld(ctx context.Context) error {
	if c.held == 0 {
		return nil
	}
	namespace, err := c.makeNamespace(ctx, "held-")
	if err != nil {
		return err
	}
	var all []held
	if err := c.askFleet(ctx, http.MethodGet, "/held", &all); err != nil {
		return err
	}
	begin := time.Now()
	writing, writingCtx := errgroup.WithContext(ctx)
	writing.SetLimit(heldWriters)
	ofNode := map[string]int{}
	for _, h := range all {
		if ofNode[h.Node]++; ofNode[h.Node] <= c.held {
			writing.Go(func() error { return c.bind(writingCtx, namespace, h) })
		}
	}
	if err := writing.Wait(); err != nil {
		return err
	}
	want := c.nodes * c.held
	err = carve.Until(ctx, waitTimeout+time.Duration(want)*20*time.Millisecond, "the PV controller has bound the claims of volumes that nodes have", func(ctx context.Context) error {
		page, err := c.kubeMetrics(ctx, pvBinder)
		if err != nil {
			return err
		}
		bound := page.sums("pv_collector_bound_pvc_count", func(labels map[string]string) string { return labels["namespace"] })[namespace]
		if int(bound) < want {
			return fmt.Errorf("%.0f of %d", bound, want)
		}
		return nil
	})
	if err == nil {
		fmt.Fprintf(c.progress, "%d PersistentVolumes made and bound after %v\n", want, short(time.Since(begin)))
	}
	return err
}

// bind makes a volume's claim, and the PersistentVolume. The claim names that: of 100,000, the PV
// controller is not to search for each among all.
func (c *cluster) bind(ctx context.Context, namespace string, h held) error {
	class := storageClass + strings.TrimPrefix(h.Class, deviceClass(0))
	size := corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(heldBytes, resource.BinarySI)}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claim, err := c.client.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: h.Claim, Annotations: map[string]string{selectedNode: h.Node}},
		Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeName: h.Name, AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: size}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make claim %s: %w", h.Claim, err)
	}
	_, err = c.client.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: h.Name, Labels: map[string]string{heldLabel: ""}, Finalizers: []string{"external-provisioner.volume.kubernetes.io/finalizer"},
			Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": driver, "carve.csi.local/volume-group": h.Group},
		},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: modes, Capacity: size, StorageClassName: class, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: namespace, Name: h.Claim, UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driver, VolumeHandle: h.ID, FSType: "ext4", VolumeAttributes: map[string]string{"carve.csi.local/device-class": h.Class},
			}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: topologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{h.Node}}},
			}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make PersistentVolume %s: %w", h.Name, err)
	}
	// The PV controller and the PVC protection controller would do the rest, one volume after the other. That no Pod
	// uses the claims, the latter would note before it lets claims of Pods go.
	_, err = c.client.CoreV1().PersistentVolumes().Patch(ctx, h.Name, types.MergePatchType, []byte(`{"status":{"phase":"Bound"}}`), metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("have PersistentVolume %s bound: %w", h.Name, err)
	}
	for _, patch := range []struct{ text, subresource string }{
		{`{"metadata":{"annotations":{"pv.kubernetes.io/bind-completed":"yes"}}}`, ""},
		{fmt.Sprintf(`{"status":{"phase":"Bound","accessModes":[%q],"capacity":{"storage":"%d"},"conditions":[{"type":%q,"status":"True","lastTransitionTime":%q}]}}`,
			modes[0], heldBytes, corev1.PersistentVolumeClaimUnused, time.Now().UTC().Format(time.RFC3339)), "status"},
	} {
		_, err := c.client.CoreV1().PersistentVolumeClaims(namespace).Patch(ctx, h.Claim, types.MergePatchType, []byte(patch.text), metav1.PatchOptions{}, patch.subresource)
		if err != nil {
			return fmt.Errorf("have claim %s bound: %w", h.Claim, err)
		}
	}
	return nil
}
