//go:build apiserver

package controller

import (
	"context"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func patchNode(client kubernetes.Interface, name, patch string, dryRun ...string) error {
	_, err := client.CoreV1().Nodes().Patch(context.Background(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{DryRun: dryRun})
	return err
}

func hasTaint(client kubernetes.Interface, name string) bool {
	node, err := client.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
	return err == nil && slices.ContainsFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.Key != "example.com/other" })
}

// The rights must suffice for the taint and nothing else.
func TestStartupTaintWithTheRightsThatAreShipped(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	const own = "example.com/storage-not-ready"
	const others = `{"key":"example.com/other","effect":"NoSchedule"}`
	taints := `{"spec":{"taints":[{"key":"` + names.TaintAgentNotReady + `","effect":"NoSchedule"},{"key":"` + names.TaintAutoscaler + `","effect":"NoSchedule"},{"key":"` + names.TaintReadiness + `","effect":"NoSchedule"},{"key":"` + own + `","effect":"NoSchedule"},` + others + `]}}`
	must.Succeed(t, patchNode(client, "n1", taints))
	limited := asController(t)
	if err := patchNode(limited, "n1", `{"spec":{"unschedulable":true}}`); !apierrors.IsForbidden(err) {
		t.Errorf("the base lets the controller patch nodes: %v", err)
	}

	apply(t, client, "../../deploy/components/startup-taint/rbac.yaml")
	apply(t, client, "../../deploy/components/startup-taint/policy.yaml")
	waittest.Until(t, "the policy is in force", func() bool {
		return apierrors.IsInvalid(patchNode(limited, "n1", `{"metadata":{"labels":{"probe":"x"}}}`, metav1.DryRunAll))
	})
	for name, patch := range map[string]string{
		"cordon a node":           `{"spec":{"unschedulable":true}}`,
		"label a node":            `{"metadata":{"labels":{"a":"b"}}}`,
		"annotate a node":         `{"metadata":{"annotations":{"a":"b"}}}`,
		"hold a node back":        `{"metadata":{"finalizers":["example.com/x"]}}`,
		"add a taint":             `{"spec":{"taints":[{"key":"example.com/new","effect":"NoExecute"}]}}`,
		"remove another's taint":  `{"spec":{"taints":[{"key":"` + names.TaintAgentNotReady + `","effect":"NoSchedule"}]}}`,
		"remove every taint":      `{"spec":{"taints":null}}`,
		"change the taint's kind": `{"spec":{"taints":[{"key":"` + names.TaintAgentNotReady + `","effect":"NoExecute"}]}}`,
	} {
		if err := patchNode(limited, "n1", patch); !apierrors.IsInvalid(err) {
			t.Errorf("the controller may %s: %v", name, err)
		}
	}
	if !hasTaint(client, "n1") {
		t.Fatal("the taint is gone before the controller runs")
	}

	// Change the policy as in docs/how-to/startup-taint.md.
	patch := `[{"op":"replace","path":"/spec/variables/0/expression","value":"['` + names.TaintAgentNotReady + `','` + names.TaintAutoscaler + `','` + names.TaintReadiness + `','` + own + `']"}]`
	must.Get(client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Patch(t.Context(), "carve-controller-startup-taint", types.JSONPatchType, []byte(patch), metav1.PatchOptions{}))(t)

	w.class(t, nil)
	actWith(t, w, Options{Client: limited, Namespace: ours, RemoveStartupTaint: true, StartupTaintKeys: []string{own}})
	waittest.Until(t, "the taint is gone", func() bool { return !hasTaint(client, "n1") })
	node, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil || len(node.Spec.Taints) == 0 || node.Spec.Taints[0].Key != "example.com/other" {
		t.Errorf("another's taint went, too: %+v %v", node.Spec.Taints, err)
	}
	name := capacity.Key{Node: "n1", Class: "scenario"}.ObjectName()
	if c, err := client.StorageV1().CSIStorageCapacities(ours).Get(t.Context(), name, metav1.GetOptions{}); err != nil || c.Capacity.Value() != gib {
		t.Errorf("published %+v: %v", c, err)
	}
}
