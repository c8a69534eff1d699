package cluster

import (
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/pkg/controller/objects"
)

func TestOfAPodOnlyItsClaimsAreKept(t *testing.T) {
	full := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "uid", ResourceVersion: "7", Labels: map[string]string{"a": "b"}},
		Spec: v1.PodSpec{NodeName: "n1", Containers: []v1.Container{{Name: "c"}}, Volumes: []v1.Volume{
			{Name: "tmp", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
			{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{}}}},
			{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
		}},
	}
	got, err := claimsOnly(full)
	lean, ok := got.(*v1.Pod)
	if err != nil || !ok {
		t.Fatalf("%v, error %v", got, err)
	}
	if lean.Labels != nil || lean.Spec.Containers != nil || len(lean.Spec.Volumes) != 2 || lean.Spec.NodeName != "n1" || lean.ResourceVersion != "7" {
		t.Errorf("kept %+v", lean)
	}
	want := []string{"ns/data", "ns/web-scratch"}
	for what, pod := range map[string]*v1.Pod{"the whole Pod": full, "what is kept": lean} {
		if keys := objects.ClaimsNamed(pod); !reflect.DeepEqual(keys, want) {
			t.Errorf("%s: claims %q, want %q", what, keys, want)
		}
	}
}
