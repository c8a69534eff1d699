//go:build apiserver

package chart_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/carve-csi/carve/release/chart"
	"github.com/carve-csi/carve/release/manifests"
)

// TestEveryPlatformsPodsAreAdmitted has a real API server judge the agents' and the
// controllers' Pods of each platform: by Pod Security in a namespace that is labelled as the
// documents say, and in one that is not. The API server refuses critical Pods without a quota,
// as GKE's does: there the chart's quota must do, and elsewhere the test makes one.
func TestEveryPlatformsPodsAreAdmitted(t *testing.T) {
	client, _ := connect(t)
	for name, v := range platforms(t) {
		t.Run(name, func(t *testing.T) {
			if name != "gke" {
				v["criticalQuota"] = map[string]any{"enabled": true}
			}
			for _, level := range []string{"privileged", "baseline"} {
				in := "platform-" + name + "-" + level
				set, err := chart.Render(load(t), in, v)
				if err != nil {
					t.Fatal(err)
				}
				makeNamespace(t, client, in, level)
				for _, object := range set {
					prepare(t, client, in, object)
				}
				for kind, pod := range podsOf(t, set) {
					err := admit(t, client, in, pod, quotaUnknown, quotaMissing)
					refused := level == "baseline" && kind == "DaemonSet"
					if refused && (err == nil || !strings.Contains(err.Error(), "violates PodSecurity")) || !refused && err != nil {
						t.Errorf("the Pod of %s at level %s: %v", kind, level, err)
					}
				}
			}
		})
	}
}

// TestCriticalPodsAreRefusedWithoutTheQuota shows that the API server that admits the platforms'
// Pods is one that demands the quota.
func TestCriticalPodsAreRefusedWithoutTheQuota(t *testing.T) {
	client, _ := connect(t)
	const in = "critical-without-quota"
	v := platforms(t)["gke"]
	v["criticalQuota"] = map[string]any{"enabled": false}
	set, err := chart.Render(load(t), in, v)
	if err != nil {
		t.Fatal(err)
	}
	makeNamespace(t, client, in, "privileged")
	for _, object := range set {
		prepare(t, client, in, object)
	}
	for kind, pod := range podsOf(t, set) {
		if err := admit(t, client, in, pod, quotaUnknown); err == nil || !strings.Contains(err.Error(), quotaMissing) {
			t.Errorf("the Pod of %s: want it refused for want of quota, got %v", kind, err)
		}
	}
}

func makeNamespace(t *testing.T, client kubernetes.Interface, name, level string) {
	t.Helper()
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": level}}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), space, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// podsOf returns the Pods of Deployments and DaemonSets, by kind.
func podsOf(t *testing.T, set manifests.Set) map[string]*corev1.Pod {
	t.Helper()
	pods := map[string]*corev1.Pod{}
	for _, object := range set {
		template, found, err := unstructured.NestedMap(object.Object, "spec", "template")
		if err != nil || !found {
			continue
		}
		pod := &corev1.Pod{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, pod); err != nil {
			t.Fatal(err)
		}
		pod.Name = strings.ToLower(object.GetKind())
		pods[object.GetKind()] = pod
	}
	if len(pods) < 2 {
		t.Fatalf("want Pods of a Deployment and a DaemonSet, got %d", len(pods))
	}
	return pods
}

// What the API server refuses a critical Pod with until its watch has brought the quota, and how
// much of it is used.
const (
	quotaMissing = "insufficient quota"
	quotaUnknown = "status unknown for quota"
)

// admit asks whether the API server would take a Pod in, again while it refuses it for what passes.
func admit(t *testing.T, client kubernetes.Interface, in string, pod *corev1.Pod, passing ...string) error {
	t.Helper()
	var refusal error
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, refusal = client.CoreV1().Pods(in).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return refusal == nil || !slices.ContainsFunc(passing, func(text string) bool { return strings.Contains(refusal.Error(), text) }), nil
	}); err != nil {
		t.Errorf("wait for the quota's status in %s: %v", in, err)
	}
	return refusal
}

// prepare makes what the Pods need to be judged: accounts and quotas.
func prepare(t *testing.T, client kubernetes.Interface, in string, object *unstructured.Unstructured) {
	t.Helper()
	var err error
	switch object.GetKind() {
	case "ServiceAccount":
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: object.GetName()}}
		_, err = client.CoreV1().ServiceAccounts(in).Create(t.Context(), account, metav1.CreateOptions{})
	case "ResourceQuota":
		quota := &corev1.ResourceQuota{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, quota); err != nil {
			t.Fatal(err)
		}
		quota.Namespace = in
		_, err = client.CoreV1().ResourceQuotas(in).Create(t.Context(), quota, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}
