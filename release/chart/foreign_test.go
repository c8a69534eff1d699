package chart_test

import (
	"encoding/json"
	"slices"
	"testing"

	securityv1 "github.com/openshift/api/security/v1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/carve-csi/carve/release/chart"
	"github.com/carve-csi/carve/release/manifests"
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

// as reads an object, or a part of one, into its type.
func as[T any](t *testing.T, object map[string]any) *T {
	t.Helper()
	typed := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, typed); err != nil {
		t.Fatal(err)
	}
	return typed
}

// podTemplates returns the templates of Pods by the key of their workload.
func podTemplates(t *testing.T, set manifests.Set) map[string]*corev1.PodTemplateSpec {
	t.Helper()
	all := map[string]*corev1.PodTemplateSpec{}
	for key, object := range set {
		if template, found, _ := unstructured.NestedMap(object.Object, "spec", "template"); found {
			all[key] = as[corev1.PodTemplateSpec](t, template)
		}
	}
	return all
}

// TestTheConstraintsOfOpenShiftAdmitTheContainers: those that every account has refuse containers that
// are privileged or have a fixed user.
func TestTheConstraintsOfOpenShiftAdmitTheContainers(t *testing.T) {
	set, err := chart.Render(load(t), namespace, values(t, "{openshift: {enabled: true}, scheduler: {enabled: true}, ioLimits: {enabled: true}}"))
	if err != nil {
		t.Fatal(err)
	}
	for name, set := range map[string]manifests.Set{
		"chart":     set,
		"kustomize": kustomization(t, "resources: [../overlays/openshift]\ncomponents: [../components/scheduler, ../components/io-limits]\n"),
	} {
		seen := 0
		for key, pod := range podTemplates(t, set) {
			user := "system:serviceaccount:" + set[key].GetNamespace() + ":" + pod.Spec.ServiceAccountName
			for i := range pod.Spec.Containers {
				c := &pod.Spec.Containers[i]
				privileged, uid := c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged, c.SecurityContext.RunAsUser
				if uid == nil && pod.Spec.SecurityContext != nil {
					uid = pod.Spec.SecurityContext.RunAsUser
				}
				if !privileged && uid == nil {
					continue
				}
				seen++
				if !isAdmitted(t, set, user, privileged, uid) {
					t.Errorf("%s: no constraints admit the container %s of %s", name, c.Name, user)
				}
			}
		}
		if seen != 5 {
			t.Errorf("%s: %d containers are privileged or have a fixed user, want 5", name, seen)
		}
	}
}

func isAdmitted(t *testing.T, set manifests.Set, user string, privileged bool, uid *int64) bool {
	t.Helper()
	for _, object := range set {
		if object.GetKind() != "SecurityContextConstraints" {
			continue
		}
		c := as[securityv1.SecurityContextConstraints](t, object.Object)
		if slices.Contains(c.Users, user) && (c.AllowPrivilegedContainer || !privileged) &&
			(c.RunAsUser.Type == securityv1.RunAsUserStrategyRunAsAny || uid != nil && c.RunAsUser.UID != nil && *c.RunAsUser.UID == *uid) {
			return true
		}
	}
	return false
}

// TestThePodMonitorSelectsWhatHasMetrics has Prometheus ask every container that has the token for metrics.
func TestThePodMonitorSelectsWhatHasMetrics(t *testing.T) {
	set, err := chart.Render(load(t), namespace, values(t, "{podMonitor: {enabled: true}, scheduler: {enabled: true}, ioLimits: {enabled: true}}"))
	if err != nil {
		t.Fatal(err)
	}
	monitor := as[monitoringv1.PodMonitor](t, set["PodMonitor.monitoring.coreos.com/carve-system/carve"].Object)
	selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for key, pod := range podTemplates(t, set) {
		for i := range pod.Spec.Containers {
			c := &pod.Spec.Containers[i]
			if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "metrics-token" }) {
				continue
			}
			seen++
			if !selector.Matches(labels.Set(pod.Labels)) {
				t.Errorf("%s: the selector %s does not match %v", key, selector, pod.Labels)
			}
			if !slices.ContainsFunc(c.Ports, func(port corev1.ContainerPort) bool {
				return slices.ContainsFunc(monitor.Spec.PodMetricsEndpoints, func(e monitoringv1.PodMetricsEndpoint) bool { return *e.Port == port.Name })
			}) {
				t.Errorf("%s: no port of the container %s is in the PodMonitor: %v", key, c.Name, c.Ports)
			}
		}
	}
	if seen != 3 {
		t.Errorf("%d containers have the token for metrics, want 3", seen)
	}
}
