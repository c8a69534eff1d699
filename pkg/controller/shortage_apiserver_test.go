//go:build apiserver

package controller

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// placements counts the scheduler's choices of a node for each claim of our namespace.
type placements struct {
	mu     sync.Mutex
	chosen map[string]map[string]int // by claim and node
}

func watchPlacements(t *testing.T, client kubernetes.Interface) *placements {
	t.Helper()
	claims := client.CoreV1().PersistentVolumeClaims(ours)
	now := must.Get(claims.List(t.Context(), metav1.ListOptions{}))(t)
	// The watch delivers every later version of a claim.
	changes := must.Get(claims.Watch(context.Background(), metav1.ListOptions{ResourceVersion: now.ResourceVersion}))(t)
	p, before, done := &placements{chosen: map[string]map[string]int{}}, map[types.UID]string{}, make(chan struct{})
	// A stopped watch may report a read error.
	var stopping atomic.Bool
	go func() {
		defer close(done)
		for change := range changes.ResultChan() {
			claim, ok := change.Object.(*v1.PersistentVolumeClaim)
			if !ok {
				if !stopping.Load() {
					t.Errorf("the watch of claims broke: %v", change.Object)
				}
				continue
			}
			node := claim.Annotations[volume.AnnSelectedNode]
			if node != "" && node != before[claim.UID] {
				p.mu.Lock()
				if p.chosen[claim.Name] == nil {
					p.chosen[claim.Name] = map[string]int{}
				}
				p.chosen[claim.Name][node]++
				p.mu.Unlock()
			}
			before[claim.UID] = node
		}
	}()
	t.Cleanup(func() {
		stopping.Store(true)
		changes.Stop()
		<-done
	})
	return p
}

// most returns the maximum over claims.
func (p *placements) most(node string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	most := 0
	for _, of := range p.chosen {
		most = max(most, of[node])
	}
	return most
}

// The scheduler may choose the node where not both claims fit only once.
func TestAPodWhoseClaimsDoNotFitTogetherComesToAnotherNode(t *testing.T) {
	t.Run("claims that come with the Pod", func(t *testing.T) { testClaimsThatDoNotFitTogether(t, "pair", true) })
	t.Run("claims made by hand", func(t *testing.T) { testClaimsThatDoNotFitTogether(t, "twins", false) })
}

func testClaimsThatDoNotFitTogether(t *testing.T, name string, ephemeral bool) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	w.nodes["n2"] = lvmdfake.New("n2", lvmdfake.Class{Name: "local", Default: true, Bytes: 2 * gib})
	cordon := func(yes string) {
		t.Helper()
		must.Get(client.CoreV1().Nodes().Patch(t.Context(), "n2", types.MergePatchType, []byte(`{"spec":{"unschedulable":`+yes+`}}`), metav1.PatchOptions{}))(t)
	}
	cordon("true")
	w.class(t, nil)
	actOn(t, w, Options{Client: asController(t), Namespace: ours})

	spec, claim := scheduledPod(ephemeral)
	spec.Tolerations = []v1.Toleration{{Key: v1.TaintNodeNotReady, Operator: v1.TolerationOpExists}, {Key: v1.TaintNodeUnreachable, Operator: v1.TolerationOpExists}}
	claim.Resources.Requests[v1.ResourceStorage] = resource.MustParse("600Mi")
	spec.Volumes = nil
	for _, one := range []string{"data", "more"} {
		source := v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{Spec: claim}}}
		if !ephemeral {
			made := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + one}, Spec: claim}
			must.Get(client.CoreV1().PersistentVolumeClaims(ours).Create(t.Context(), made, metav1.CreateOptions{}))(t)
			source = v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: made.Name}}
		}
		spec.Volumes = append(spec.Volumes, v1.Volume{Name: one, VolumeSource: source})
	}
	placed := watchPlacements(t, client)
	onceAtMost := func() {
		t.Helper()
		if n := placed.most("n1"); n > 1 {
			t.Fatalf("the scheduler chose n1 %d times, where not both claims fit", n)
		}
	}
	t.Cleanup(func() { // a failed test must not disturb the next one
		atOnce := int64(0)
		_ = client.CoreV1().Pods(ours).Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: &atOnce})
		for _, one := range []string{"data", "more"} {
			_ = client.CoreV1().PersistentVolumeClaims(ours).Delete(context.Background(), name+"-"+one, metav1.DeleteOptions{})
		}
	})
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	waittest.Until(t, "the Pod is taken", func() bool { // once the namespace has its service account
		_, err := client.CoreV1().Pods(ours).Create(t.Context(), pod, metav1.CreateOptions{})
		return err == nil
	})
	waittest.Until(t, "its claims are rescheduled, and an Event says so", func() bool {
		events, err := client.CoreV1().Events(ours).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=" + cluster.ReasonFailed})
		return err == nil && slices.ContainsFunc(events.Items, func(e v1.Event) bool {
			return strings.HasPrefix(e.InvolvedObject.Name, name+"-") && strings.Contains(e.Message, "together")
		})
	})
	// While the other node is excluded, the scheduler retries this one.
	waittest.Until(t, "it finds that the node has too little", func() bool {
		onceAtMost()
		now, err := client.CoreV1().Pods(ours).Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && slices.ContainsFunc(now.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse && strings.Contains(c.Message, "did not have enough free storage")
		})
	})
	cordon("false")
	waittest.Until(t, "the Pod comes to the node that has space", func() bool {
		onceAtMost()
		now, err := client.CoreV1().Pods(ours).Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && now.Spec.NodeName == "n2"
	})
	if wrong, right := placed.most("n1"), placed.most("n2"); wrong != 1 || right != 1 {
		t.Errorf("the scheduler chose n1 %d times and n2 %d times, want each once", wrong, right)
	}
	if n := w.nodes["n1"].Creates(); n != 0 {
		t.Errorf("%d volumes were made on the node where not both fit", n)
	}
	if n := len(w.nodes["n2"].Volumes()); n != 2 {
		t.Errorf("%d volumes on the node with space", n)
	}
	must.Succeed(t, client.CoreV1().Pods(ours).Delete(t.Context(), name, metav1.DeleteOptions{}))
	if !ephemeral {
		for _, one := range []string{"data", "more"} {
			must.Succeed(t, client.CoreV1().PersistentVolumeClaims(ours).Delete(t.Context(), name+"-"+one, metav1.DeleteOptions{}))
		}
	}
	waittest.Until(t, "the volumes go with their claims", func() bool { return len(w.nodes["n2"].Volumes()) == 0 })
}
