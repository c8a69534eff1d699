//go:build apiserver

package chart_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/carve-csi/carve/release/chart"
	"github.com/carve-csi/carve/release/manifests"
)

// TestAgentsKeepOffNodesThatCannotRunThem: a rollout waits for every node that the DaemonSet
// controller counts, and so without end for one that is Windows or no machine at all. An
// administrator stops an agent, and has it start again.
func TestAgentsKeepOffNodesThatCannotRunThem(t *testing.T) {
	client, _ := connect(t)
	for _, n := range []struct {
		name, os string
		labels   map[string]string
		taint    string
	}{
		{"windows", "windows", nil, ""},
		{"fargate", "linux", map[string]string{"eks.amazonaws.com/compute-type": "fargate"}, "eks.amazonaws.com/compute-type"},
		{"virtual", "linux", map[string]string{"type": "virtual-kubelet"}, "virtual-kubelet.io/provider"},
		{"tainted", "linux", nil, "dedicated"},
		// The last: a controller that counts it has seen the others.
		{"usual", "linux", map[string]string{"eks.amazonaws.com/compute-type": "ec2"}, ""},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mixed-" + n.name, Labels: n.labels}}
		metav1.SetMetaDataLabel(&node.ObjectMeta, "kubernetes.io/os", n.os)
		metav1.SetMetaDataLabel(&node.ObjectMeta, "disks", map[bool]string{false: "nvme", true: "hdd"}[n.name == "tainted"])
		if n.taint != "" {
			node.Spec.Taints = []corev1.Taint{{Key: n.taint, Effect: corev1.TaintEffectNoSchedule}}
		}
		node.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("50")}
		node.Status.Capacity = node.Status.Allocatable
		if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := client.CoreV1().Nodes().Delete(context.Background(), node.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	rendered := func(given string) func(string) (manifests.Set, error) {
		return func(in string) (manifests.Set, error) { return chart.Render(load(t), in, values(t, given)) }
	}
	for name, made := range map[string]func(in string) (manifests.Set, error){
		"one-daemonset": rendered("criticalQuota: {enabled: true}"),
		"pools":         rendered("{criticalQuota: {enabled: true}, nodePools: [{name: fast, nodeSelector: {disks: nvme}}, {name: slow, nodeSelector: {disks: hdd}}]}"),
		"overlay": func(in string) (manifests.Set, error) {
			return kustomization(t, "namespace: "+in+"\nresources: [../overlays/node-pools]\ncomponents: [../components/critical-quota]"), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := "mixed-" + name
			set, err := made(in)
			if err != nil {
				t.Fatal(err)
			}
			space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: in}}
			if _, err := client.CoreV1().Namespaces().Create(t.Context(), space, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := client.CoreV1().Namespaces().Delete(context.Background(), in, metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			})
			for _, object := range set {
				prepare(t, client, in, object)
			}
			for _, object := range set {
				if object.GetKind() != "DaemonSet" {
					continue
				}
				daemons := &appsv1.DaemonSet{}
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, daemons); err != nil {
					t.Fatal(err)
				}
				if _, err := client.AppsV1().DaemonSets(in).Create(t.Context(), daemons, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			checkNodes(t, client, in, "mixed-tainted", "mixed-usual")
			label := func(value string) {
				patch := []byte(`{"metadata":{"labels":{"carve.csi.local/agent":` + value + `}}}`)
				if _, err := client.CoreV1().Nodes().Patch(t.Context(), "mixed-usual", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			label(`"stopped"`)
			checkNodes(t, client, in, "mixed-tainted")
			label("null")
			checkNodes(t, client, in, "mixed-tainted", "mixed-usual")
		})
	}
}

// checkNodes waits until the DaemonSets of a namespace are counted on these nodes, and have their Pods
// there, one on each.
func checkNodes(t *testing.T, client kubernetes.Interface, in string, want ...string) {
	t.Helper()
	var got []string
	var counted int32
	if err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		daemons, err := client.AppsV1().DaemonSets(in).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		pods, err := client.CoreV1().Pods(in).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		got, counted = nil, 0
		for _, daemon := range daemons.Items {
			counted += daemon.Status.DesiredNumberScheduled
		}
		for _, pod := range pods.Items {
			if pod.DeletionTimestamp == nil {
				got = append(got, pod.Spec.NodeName)
				continue
			}
			// There is no kubelet that ends it.
			if err := client.CoreV1().Pods(in).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil && !apierrors.IsNotFound(err) {
				return false, err
			}
		}
		slices.Sort(got)
		return int(counted) == len(want) && slices.Equal(got, want), nil
	}); err != nil {
		t.Errorf("%v: want Pods on %s, got %d that are waited for, on %s", err, strings.Join(want, ", "), counted, strings.Join(got, ", "))
	}
}
