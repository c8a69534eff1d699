//go:build apiserver

package controller

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// byHand is the user whose bindings refuseBindings allows.
const byHand = "by-hand"

// refuseBindings makes the API server reject bindings of Pods db-0 until allow, as for a
// binding that is no longer valid: their claims are bound by then.
func refuseBindings(t *testing.T, client kubernetes.Interface) (allow func()) {
	t.Helper()
	const name = "refuse-bindings"
	fail := admissionv1.Fail
	policies, bindings := client.AdmissionregistrationV1().ValidatingAdmissionPolicies(), client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	must.Get(policies.Create(t.Context(), &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/binding"}},
			}}}},
			MatchConditions: []admissionv1.MatchCondition{{Name: "db-0", Expression: fmt.Sprintf("request.name.startsWith('db-') && request.userInfo.username != '%s'", byHand)}},
			Validations:     []admissionv1.Validation{{Expression: "false", Message: "this binding fails"}},
		}}, metav1.CreateOptions{}))(t)
	must.Get(bindings.Create(t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}}, metav1.CreateOptions{}))(t)
	allow = func() {
		_ = bindings.Delete(context.Background(), name, metav1.DeleteOptions{})
		_ = policies.Delete(context.Background(), name, metav1.DeleteOptions{})
	}
	t.Cleanup(allow)
	waittest.Until(t, "bindings are refused", func() bool {
		err := client.CoreV1().Pods(ours).Bind(t.Context(), bindingTo("db-none", "none"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "this binding fails")
	})
	return allow
}

func bindingTo(pod, node string) *v1.Binding {
	return &v1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: ours}, Target: v1.ObjectReference{Kind: "Node", Name: node}}
}

func bindByHand(t *testing.T, node string) {
	t.Helper()
	config := must.Get(apiServer())(t)
	config.Impersonate = rest.ImpersonationConfig{UserName: byHand, Groups: []string{"system:masters"}}
	hand := must.Get(kubernetes.NewForConfig(config))(t)
	must.Succeed(t, hand.CoreV1().Pods(ours).Bind(t.Context(), bindingTo("db-0", node), metav1.CreateOptions{}))
}

// moving is a world of movable volumes whose Pods may lack a node for grace.
func moving(t *testing.T, grace time.Duration) *world {
	t.Helper()
	return movingIn(t, movable, grace)
}

func movingIn(t *testing.T, class func(*storagev1.StorageClass), grace time.Duration) *world {
	t.Helper()
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	w.class(t, class)
	actOn(t, w, Options{Client: asController(t), Namespace: ours}, func(c *Controller) { c.core.pinGrace, c.core.shortFor = grace, time.Second })
	return w
}

func (w *world) claimed(t *testing.T) (claim *v1.PersistentVolumeClaim, pod *v1.Pod, node string) {
	t.Helper()
	waittest.Until(t, "the claim is bound", func() bool {
		var err error
		claim, err = w.client.CoreV1().PersistentVolumeClaims(ours).Get(t.Context(), "db-0-data", metav1.GetOptions{})
		return err == nil && claim.Status.Phase == v1.ClaimBound && claim.DeletionTimestamp == nil
	})
	node, _ = objects.RecordedNode(w.pv(claim))
	if node == "" || node != claim.Annotations[volume.AnnSelectedNode] {
		t.Fatalf("the volume is on node %q, selected was %q", node, claim.Annotations[volume.AnnSelectedNode])
	}
	return claim, must.Get(w.client.CoreV1().Pods(ours).Get(t.Context(), "db-0", metav1.GetOptions{}))(t), node
}

func isPinned(node string) func(*v1.PersistentVolume) bool {
	return func(pv *v1.PersistentVolume) bool {
		on, _ := objects.NodeOf(pv)
		return pv.Spec.NodeAffinity != nil && on == node
	}
}

func (w *world) takes(t *testing.T, node, pods string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"status":{"allocatable":{"pods":%q}}}`, pods)
	must.Get(w.client.CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"))(t)
}

func other(node string) string { return map[string]string{"n1": "n2", "n2": "n1"}[node] }

func TestAPodWhoseBindingFailedStaysWithItsVolume(t *testing.T) {
	w := moving(t, 0)
	allow := refuseBindings(t, w.client)
	startSet(t, w.client, true)
	claim, before, node := w.claimed(t)
	waittest.Until(t, "it is pinned", w.volumeIs(claim, isPinned(node)))
	w.takes(t, node, "0")
	waittest.Until(t, "the scheduler finds no node", func() bool {
		pod := must.Get(w.client.CoreV1().Pods(ours).Get(t.Context(), "db-0", metav1.GetOptions{}))(t)
		if pod.Spec.NodeName != "" || pod.UID != before.UID {
			t.Fatalf("Pod %s is on node %q", pod.UID, pod.Spec.NodeName)
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == v1.PodScheduled && strings.Contains(c.Message, "1 Too many pods") && strings.Contains(c.Message, "1 node(s) didn't match PersistentVolume's node affinity") {
				return true
			}
		}
		return false
	})
	allow() // the scheduler has seen that the node takes no Pods
	w.takes(t, node, "10000")
	after, pod := w.running(t, claim.Name, "")
	if pod.UID != before.UID || pod.Spec.NodeName != node || after.UID != claim.UID {
		t.Errorf("Pod %s on node %s, it was %s", pod.UID, pod.Spec.NodeName, before.UID)
	}
	w.endSet(t, true, claim, after)
}

func TestAPodThatIsBoundToAnotherNodeThanItsVolumeIsMadeAgain(t *testing.T) {
	for name, grace := range map[string]time.Duration{"before the volume is pinned": time.Hour, "after it": time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			w := moving(t, grace)
			allow := refuseBindings(t, w.client)
			startSet(t, w.client, true)
			claim, before, node := w.claimed(t)
			if grace < time.Hour {
				waittest.Until(t, "it is pinned", w.volumeIs(claim, isPinned(node)))
			}
			bindByHand(t, other(node))
			waittest.Until(t, "its claim goes with it", func() bool {
				now := w.get(claim) // or its successor
				return now == nil || now.UID != claim.UID || now.DeletionTimestamp != nil
			})
			allow()
			after, pod := w.running(t, claim.Name, string(claim.UID))
			if on, _ := objects.RecordedNode(w.pv(after)); pod.UID == before.UID || pod.Spec.NodeName != on {
				t.Errorf("Pod %s on node %s, it was %s; the volume is on node %s", pod.UID, pod.Spec.NodeName, before.UID, on)
			}
			w.endSet(t, true, claim, after)
		})
	}
}

func TestAVolumeIsPinnedForASecondPod(t *testing.T) {
	w := moving(t, time.Hour)
	startSet(t, w.client, true)
	claim, pod := w.running(t, "db-0-data", "")
	if pv := w.pv(claim); pv.Spec.NodeAffinity != nil {
		t.Fatalf("pinned: %v", pv.Spec.NodeAffinity)
	}
	spec, _ := scheduledPod(false)
	spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name}}}}
	spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/wait"}}
	pods := w.client.CoreV1().Pods(ours)
	must.Get(pods.Create(t.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "second"}, Spec: spec}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() { _ = pods.Delete(context.Background(), "second", metav1.DeleteOptions{}) })
	waittest.Until(t, "it is pinned", w.volumeIs(claim, isPinned(pod.Spec.NodeName)))
	must.Get(pods.Patch(t.Context(), "second", types.MergePatchType, []byte(`{"spec":{"schedulingGates":null}}`), metav1.PatchOptions{}))(t)
	waittest.Until(t, "it has a node", func() bool {
		second := must.Get(pods.Get(t.Context(), "second", metav1.GetOptions{}))(t)
		if on := second.Spec.NodeName; on != "" && on != pod.Spec.NodeName {
			t.Fatalf("it is on node %s, the volume on node %s", on, pod.Spec.NodeName)
		}
		return second.Spec.NodeName != ""
	})
	must.Succeed(t, pods.Delete(t.Context(), "second", metav1.DeleteOptions{}))
	w.endSet(t, true, claim, claim)
}

func TestAPodThatNamesItsNodeHasAMovableVolumeThere(t *testing.T) {
	w := moving(t, time.Millisecond)
	startSet(t, w.client, true, func(pod *v1.PodSpec) { pod.NodeName = "n2" })
	claim, _ := w.running(t, "db-0-data", "")
	if _, _, node := w.claimed(t); node != "n2" || w.pv(claim).Spec.NodeAffinity != nil {
		t.Errorf("on node %s, affinity %v", node, w.pv(claim).Spec.NodeAffinity)
	}
	w.endSet(t, true, claim, claim)
}

func TestAPodWithAMovableVolumeMoves(t *testing.T) {
	w := moving(t, 0)
	startSet(t, w.client, true)
	first, before := w.running(t, "db-0-data", "")
	if err := volume.CheckNodeAffinity(w.pv(first), map[string]string{}); err != nil {
		t.Fatalf("the Pod fits on no other node: %v", err)
	}
	w.takes(t, before.Spec.NodeName, "0")
	must.Succeed(t, w.client.CoreV1().Pods(ours).Delete(t.Context(), "db-0", metav1.DeleteOptions{}))
	second, after := w.running(t, first.Name, string(first.UID))
	if on, _ := objects.RecordedNode(w.pv(second)); after.Spec.NodeName != other(before.Spec.NodeName) || on != after.Spec.NodeName {
		t.Errorf("Pod on node %s, volume on node %s, both were on node %s", after.Spec.NodeName, on, before.Spec.NodeName)
	}
	waittest.Until(t, "nothing is left of the first", func() bool { return w.pv(first) == nil && len(w.nodes[before.Spec.NodeName].Volumes()) == 0 })
	w.endSet(t, true, first, second)
}

// Nodes are marked as by the Cluster Autoscaler, which removes the mark when a Pod fits on no
// other node.
func TestANodeIsKeptWhoseVolumesFitNowhereElse(t *testing.T) {
	w := moving(t, time.Hour)
	startSet(t, w.client, true)
	claim, pod := w.running(t, "db-0-data", "")
	node := pod.Spec.NodeName
	w.nodes[other(node)].Resize("local", 50*mib)
	w.mark(t, node)
	waittest.Until(t, "it is pinned", w.volumeIs(claim, isPinned(node)))
	w.endSet(t, true, claim, claim)
}

func (w *world) mark(t *testing.T, node string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"taints":[{"key":%q,"value":"1786925486","effect":"PreferNoSchedule"}]}}`, names.TaintScaleDownCandidate)
	must.Get(w.client.CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}))(t)
}
