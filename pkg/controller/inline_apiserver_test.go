//go:build apiserver

package controller

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestInlineVolumesAreForNamespacesThatWereLetIn(t *testing.T) {
	client := connectToAPIServer(t)
	apply(t, client, "../../deploy/components/inline-volumes/policy.yaml")
	create := func(namespace string, source v1.VolumeSource) error {
		pod := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "inline-"},
			Spec: v1.PodSpec{
				Containers: []v1.Container{{Name: "main", Image: "main"}},
				Volumes:    []v1.Volume{{Name: "scratch", VolumeSource: source}},
			},
		}
		_, err := client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		return err
	}
	inline := func(driver string) v1.VolumeSource {
		return v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: driver, VolumeAttributes: map[string]string{names.AttributeSize: "1Gi"}}}
	}
	for name, labels := range map[string]map[string]string{"inline-no": nil, "inline-yes": {"carve.csi.local/inline-volumes": "allowed"}} {
		must.Get(client.CoreV1().Namespaces().Create(t.Context(), &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{}))(t)
		waittest.Until(t, "Pods can be made in "+name, func() bool {
			return create(name, v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}) == nil
		})
	}
	waittest.Until(t, "the policy is in force", func() bool { return apierrors.IsInvalid(create("inline-no", inline(names.Driver))) })
	if err := create("inline-no", inline(names.Driver)); err == nil || !strings.Contains(err.Error(), "use a generic ephemeral volume") {
		t.Errorf("in a namespace that was not let in: %v", err)
	}
	if err := create("inline-no", inline("other.example.com")); err != nil {
		t.Errorf("another driver's: %v", err)
	}
	if err := create("inline-yes", inline(names.Driver)); err != nil {
		t.Errorf("in a namespace that was let in: %v", err)
	}
}
