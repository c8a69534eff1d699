package chart_test

import (
	"encoding/json"
	"testing"

	securityv1 "github.com/openshift/api/security/v1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/carve-csi/carve/release/chart"
)

// TestForeignObjectsAreAsTheirTypesSay reads the objects of kinds that our test cluster
// does not know into their types, strictly.
func TestForeignObjectsAreAsTheirTypesSay(t *testing.T) {
	set, err := chart.Render(load(t), namespace, values(t, "{openshift: {enabled: true}, podMonitor: {enabled: true}, alerts: {enabled: true}}"))
	if err != nil {
		t.Fatal(err)
	}
	for key, into := range map[string]any{
		"SecurityContextConstraints.security.openshift.io//carve-node":       &securityv1.SecurityContextConstraints{},
		"SecurityContextConstraints.security.openshift.io//carve-controller": &securityv1.SecurityContextConstraints{},
		"PodMonitor.monitoring.coreos.com/carve-system/carve":                &monitoringv1.PodMonitor{},
		"PrometheusRule.monitoring.coreos.com/carve-system/carve":            &monitoringv1.PrometheusRule{},
	} {
		object, ok := set[key]
		if !ok {
			t.Errorf("there is no %s", key)
			continue
		}
		// The last of OpenShift's types that has a version is older than this field.
		unstructured.RemoveNestedField(object.Object, "allowPrivilegeEscalation")
		text, err := json.Marshal(object.Object)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict(text, into); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}
