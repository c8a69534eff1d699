//go:build apiserver

package chart_test

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/carve-csi/carve/release/chart"
)

// TestEveryPlatformsPodsAreAdmitted has a real API server judge the agents' and the
// controllers' Pods of each platform: by Pod Security in a namespace that is labelled as the
// documents say, and in one that is not, and by the quota, where the platform has one.
func TestEveryPlatformsPodsAreAdmitted(t *testing.T) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range platforms(t) {
		t.Run(name, func(t *testing.T) {
			for _, level := range []string{"privileged", "baseline"} {
				in := "platform-" + name + "-" + level
				set, err := chart.Render(load(t), in, v)
				if err != nil {
					t.Fatal(err)
				}
				space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: in, Labels: map[string]string{"pod-security.kubernetes.io/enforce": level}}}
				if _, err := client.CoreV1().Namespaces().Create(t.Context(), space, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				for _, object := range set {
					prepare(t, client, in, object)
				}
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
					_, err = client.CoreV1().Pods(in).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
					refused := level == "baseline" && object.GetKind() == "DaemonSet"
					if refused && !apierrors.IsForbidden(err) || !refused && err != nil {
						t.Errorf("the Pod of %s at level %s: %v", object.GetKind(), level, err)
					}
				}
			}
		})
	}
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
