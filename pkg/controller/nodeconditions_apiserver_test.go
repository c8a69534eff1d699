//go:build apiserver

package controller

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/carve-csi/carve/api/conditions"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// The rights must suffice for the conditions and nothing else.
func TestNodeConditionsWithTheRightsThatAreShipped(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	limited := asController(t)
	node := func() *v1.Node {
		return must.Get(client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}))(t)
	}
	patchStatus := func(patch string, dryRun ...string) error {
		_, err := limited.CoreV1().Nodes().Patch(t.Context(), "n1", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{DryRun: dryRun}, "status")
		return err
	}
	kubelet := v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady", LastTransitionTime: metav1.Now(), LastHeartbeatTime: metav1.Now()}
	// The real controller-manager writes the Node concurrently.
	must.Succeed(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		object := node()
		object.Labels["a"], object.Annotations = "b", map[string]string{"a": "b"}
		_, err := client.CoreV1().Nodes().Update(t.Context(), object, metav1.UpdateOptions{})
		return err
	}))
	must.Succeed(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		object := node()
		object.Status.Conditions = []v1.NodeCondition{{Type: "KernelDeadlock", Status: v1.ConditionFalse}, kubelet}
		object.Status.Images = []v1.ContainerImage{{Names: []string{"a", "b"}, SizeBytes: 5}}
		object.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.1"}}
		object.Status.NodeInfo = v1.NodeSystemInfo{KubeletVersion: "v1"}
		_, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), object, metav1.UpdateOptions{})
		return err
	}))
	if err := patchStatus(`{"status":{"conditions":[{"type":"carve.csi.local/x","status":"True"}]}}`); !apierrors.IsForbidden(err) {
		t.Errorf("the base lets the controller patch the status of nodes: %v", err)
	}
	for _, file := range []string{"startup-taint/rbac", "startup-taint/policy", "node-conditions/rbac", "node-conditions/policy"} {
		apply(t, client, "../../deploy/components/"+file+".yaml")
	}
	waittest.Until(t, "the policy is in force", func() bool {
		return apierrors.IsInvalid(patchStatus(`{"metadata":{"labels":{"probe":"x"}}}`, metav1.DryRunAll))
	})
	// Kubernetes' controllers change the rest of a Node without a kubelet.
	others := func() string {
		n := node()
		n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type != "KernelDeadlock" })
		return string(must.Get(json.Marshal([]any{n.Status, n.Labels, n.Spec.Unschedulable}))(t))
	}
	before := others()
	for name, patch := range map[string]string{
		"make a node NotReady":      `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`,
		"remove a condition":        `{"status":{"conditions":[{"type":"Ready","$patch":"delete"}]}}`,
		"remove all conditions":     `{"status":{"conditions":null}}`,
		"add a condition":           `{"status":{"conditions":[{"type":"carve.csi.localx","status":"True"}]}}`,
		"raise what a node has":     `{"status":{"capacity":{"cpu":"100"}}}`,
		"raise what a node offers":  `{"status":{"allocatable":{"cpu":"100"}}}`,
		"remove what a node has":    `{"status":{"capacity":null}}`,
		"redirect a node's traffic": `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.2"}]}}`,
		"remove the images":         `{"status":{"images":null}}`,
		"label a node":              `{"metadata":{"labels":{"a":"c"}}}`,
		"remove the labels":         `{"metadata":{"labels":null}}`,
		"hold a node back":          `{"metadata":{"finalizers":["example.com/x"]}}`,
		"do it beside its own":      `{"status":{"conditions":[{"type":"carve.csi.local/x","status":"True"},{"type":"Ready","status":"False"}]}}`,
	} {
		if err := patchStatus(patch); !apierrors.IsInvalid(err) {
			t.Errorf("the controller may %s: %v", name, err)
		}
	}
	// The API server drops it.
	must.Succeed(t, patchStatus(`{"spec":{"unschedulable":true}}`))
	if now := others(); now != before {
		t.Errorf("the Node was changed: %s, it was %s", now, before)
	}

	start := func() (stop func()) {
		_, _, stop = startOn(t, w, Options{Client: limited, Namespace: ours, NodeConditions: true}, func(c *Controller) { c.core.conditionPause = time.Millisecond })
		return stop
	}
	is := func(class, status, reason string) func() bool {
		return func() bool {
			return slices.ContainsFunc(node().Status.Conditions, func(c v1.NodeCondition) bool {
				return string(c.Type) == "carve.csi.local/"+class && string(c.Status) == status && c.Reason == reason && !c.LastTransitionTime.IsZero()
			})
		}
	}
	stop := start()
	lvmd := w.nodes["n1"]
	waittest.Until(t, "the class serves", is("local", "True", "Serving"))
	lvmd.SetClass("local", 0, of(conditions.VolumeGroupMissing)...)
	waittest.Until(t, "the class does not serve", is("local", "False", "VolumeGroupMissing"))
	local := lvmdfake.Class{Name: "local", Default: true, Bytes: gib}
	lvmd.SetClasses(local, lvmdfake.Class{Name: "fast", Bytes: gib})
	waittest.Until(t, "there is another class", is("fast", "True", "Serving"))
	stop()

	lvmd.SetClasses(local)
	stop = start()
	t.Cleanup(stop)
	waittest.Until(t, "another leader removes the condition of a class that is gone", func() bool {
		ofFast := func(c v1.NodeCondition) bool { return c.Type == "carve.csi.local/fast" }
		return is("local", "True", "Serving")() && !slices.ContainsFunc(node().Status.Conditions, ofFast)
	})
	if now := others(); now != before {
		t.Errorf("the Node was changed: %s, it was %s", now, before)
	}
}
