package coredns

import (
	"bytes"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/carve-csi/carve/e2e/controlplane"
)

func TestManifestsAgreeWithTheClusterTheyAreFor(t *testing.T) {
	var service, deployment bool
	for _, document := range bytes.Split(Manifests, []byte("\n---\n")) {
		switch {
		case bytes.Contains(document, []byte("\nkind: Service\n")):
			var object corev1.Service
			if err := yaml.UnmarshalStrict(document, &object); err != nil {
				t.Fatal(err)
			}
			service = true
			if got := object.Spec.ClusterIP; got != controlplane.ClusterDNS {
				t.Errorf("address of the Service: want %s, got %s", controlplane.ClusterDNS, got)
			}
		case bytes.Contains(document, []byte("\nkind: Deployment\n")):
			var object appsv1.Deployment
			if err := yaml.UnmarshalStrict(document, &object); err != nil {
				t.Fatal(err)
			}
			deployment = true
			if got := object.Spec.Template.Spec.Containers[0].Image; got != Image {
				t.Errorf("image: want %s, got %s", Image, got)
			}
		case bytes.Contains(document, []byte("\nkind: ConfigMap\n")):
			var object corev1.ConfigMap
			if err := yaml.UnmarshalStrict(document, &object); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(object.Data["Corefile"], "kubernetes "+controlplane.ClusterDomain+" ") {
				t.Errorf("the configuration does not serve %s:\n%s", controlplane.ClusterDomain, object.Data["Corefile"])
			}
		}
	}
	if !service || !deployment {
		t.Errorf("manifests: want a Service and a Deployment, got service %t, deployment %t", service, deployment)
	}
}
