package provision

import (
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/spec"
)

// Before Kubernetes 1.34 an API server with the beta enabled keeps the class of a claim, but
// serves the classes in another version.
func TestAClaimSaysWhyItsVolumeAttributesClassIsMissing(t *testing.T) {
	for name, test := range map[string]struct {
		served []metav1.APIResource
		want   string
	}{
		"the class is not there":    {[]metav1.APIResource{{Name: "storageclasses"}, {Name: cluster.VolumeAttributesClasses}}, "VolumeAttributesClass gold does not exist; waiting for it"},
		"the API server knows none": {[]metav1.APIResource{{Name: "storageclasses"}}, "upgrade to Kubernetes 1.34 or newer, or make the claim again without it"},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			client.Resources = []*metav1.APIResourceList{{GroupVersion: storagev1.SchemeGroupVersion.String(), APIResources: test.served}}
			s := sources{Cluster: &cluster.Cluster{Client: client}, attributesClasses: informers.NewSharedInformerFactory(client, 0).Storage().V1().VolumeAttributesClasses().TypedInformer()}
			_, err := s.attributes(t.Context(), &v1.PersistentVolumeClaim{}, spec.Request{AttributesClass: "gold"})
			var waits *notReadyError
			if !errors.As(err, &waits) || !strings.Contains(waits.why, test.want) || !strings.HasPrefix(waits.why, "spec.volumeAttributesClassName") {
				t.Errorf("it is %v, want to wait, and %q", err, test.want)
			}
		})
	}
}
