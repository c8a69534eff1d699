package controller

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/reclaim"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func recreate(c *storagev1.StorageClass) {
	c.Parameters = map[string]string{names.ParamOnNodeLoss: names.NodeLossRecreate}
}

func (h *harness) claimIsGone(name string) bool {
	_, err := h.client.CoreV1().PersistentVolumeClaims("default").Get(context.Background(), name, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

func (h *harness) deleteNode(name string) {
	h.t.Helper()
	must.Succeed(h.t, h.client.CoreV1().Nodes().Delete(h.t.Context(), name, metav1.DeleteOptions{}))
}

func (h *harness) taint(name, key string) {
	h.t.Helper()
	node := must.Get(h.client.CoreV1().Nodes().Get(h.t.Context(), name, metav1.GetOptions{}))(h.t)
	node = node.DeepCopy()
	node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: key, Effect: v1.TaintEffectNoExecute})
	must.Get(h.client.CoreV1().Nodes().Update(h.t.Context(), node, metav1.UpdateOptions{}))(h.t)
}

func (h *harness) untaint(name string) {
	h.t.Helper()
	node := must.Get(h.client.CoreV1().Nodes().Get(h.t.Context(), name, metav1.GetOptions{}))(h.t)
	node = node.DeepCopy()
	node.Spec.Taints = nil
	must.Get(h.client.CoreV1().Nodes().Update(h.t.Context(), node, metav1.UpdateOptions{}))(h.t)
}

func (h *harness) cutOff(name string) {
	h.t.Helper()
	h.net.Detach(name)
	waittest.Until(h.t, name+" is away", func() bool { v, _ := h.c.core.Fleet.View(name); return !v.Connected })
}

var losing = map[string]func(*harness, string){
	"its Node object is deleted":                 func(h *harness, node string) { h.deleteNode(node) },
	"an administrator says it is out of service": func(h *harness, node string) { h.taint(node, v1.TaintNodeOutOfService) },
}

func TestANodeThatIsLostTakesAlongTheClaimsWhoseClassSaysSo(t *testing.T) {
	for name, lose := range losing {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			h.node("n1", gib)
			h.class("carve", recreate)
			h.run()
			h.boundVolume("c", "n1")
			h.net.Detach("n1")
			lose(h, "n1")
			h.event("Warning NodeLost", "n1", "made again elsewhere")
			waittest.Until(h.t, "claim and volume are gone", func() bool { return h.claimIsGone("c") && h.volumes() == 0 })
		})
	}
}

func TestANodeThatIsLostLeavesOtherClaimsAndTheUserIsNotified(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.boundVolume("c", "n1")
	h.net.Detach("n1")
	h.deleteNode("n1")
	h.event("Warning NodeLost", "n1", "kept", "Delete the claim only if")
	if h.claimIsGone("c") || h.volumes() != 1 {
		t.Fatal("a claim that is to be kept was given up")
	}
	h.deleteClaim("c")
	waittest.Until(h.t, "volume is gone with its claim", func() bool { return h.volumes() == 0 })
}

// leftAlone is far longer than the grace period for deleted Node objects.
const leftAlone = 20 * cluster.NodeLossGrace

// testClock is a controller's clock that the test advances, from stop on exclusively.
type testClock struct {
	ahead   atomic.Int64
	stopped atomic.Pointer[time.Time]
}

func (c *testClock) advance(d time.Duration) { c.ahead.Add(int64(d)) }

func (c *testClock) stop() { now := time.Now(); c.stopped.Store(&now) }

func (c *testClock) set(to *Controller) {
	to.core.Now = func() time.Time {
		now := time.Now()
		if stopped := c.stopped.Load(); stopped != nil {
			now = *stopped
		}
		return now.Add(time.Duration(c.ahead.Load()))
	}
}

func (h *harness) addNodesToLose() {
	h.t.Helper()
	class := h.class("given-up", recreate).Name
	for _, name := range []string{"lost-1", "lost-2"} {
		h.node(name, gib)
		h.claim("on-"+name, name, func(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName = &class })
		waittest.Until(h.t, "claim is bound", h.bound("on-"+name))
	}
}

// loseNodes loses the nodes of addNodesToLose in turn and waits until the controller has
// abandoned their claims: in between it has checked all others.
func (h *harness) loseNodes() {
	h.t.Helper()
	for _, name := range []string{"lost-1", "lost-2"} {
		h.cutOff(name)
		h.taint(name, v1.TaintNodeOutOfService)
		waittest.Until(h.t, "what was on "+name+" is given up", func() bool { return h.claimIsGone("on-" + name) })
	}
}

func TestWhatIsNotLostIsLeftAlone(t *testing.T) {
	for name, test := range map[string]func(*harness){
		"a node that is only disconnected": func(h *harness) { h.cutOff("n1") },
		"a node that is not ready": func(h *harness) {
			h.cutOff("n1")
			h.taint("n1", v1.TaintNodeNotReady)
			h.taint("n1", v1.TaintNodeUnreachable)
		},
		"a node without Node object whose lvmd is connected": func(h *harness) { h.deleteNode("n1") },
		"a node that is out of service and yet connected":    func(h *harness) { h.taint("n1", v1.TaintNodeOutOfService) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var clock testClock
			h := newHarness(t, clock.set)
			h.node("n1", gib)
			h.class("carve", recreate)
			h.run()
			h.boundVolume("c", "n1")
			h.unscheduled("web", inTemplate("scratch"))
			h.claim("web-scratch", "n1", ofWeb("100Mi"))
			waittest.Until(h.t, "the Pod's claim is bound", h.bound("web-scratch"))
			h.addNodesToLose()
			test(h)
			waittest.Until(h.t, "the controller knows what happened to the node", func() bool {
				now, err := h.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
				cached, cacheErr := h.c.core.NodeLister.Get("n1")
				return apierrors.IsNotFound(err) && apierrors.IsNotFound(cacheErr) ||
					err == nil && cacheErr == nil && len(now.Spec.Taints) == len(cached.Spec.Taints)
			})
			r := reclaim.NewReleaser(h.c.core.Cluster)
			for range 4 { // in steps, for waits that begin at a check
				r.Pass(t.Context())
				clock.advance(leftAlone / 4)
			}
			r.Pass(t.Context())
			h.loseNodes()
			for _, claim := range []string{"c", "web-scratch"} {
				if h.claimIsGone(claim) || h.pv("pvc-uid-"+claim) == nil {
					t.Errorf("claim %s was given up within %v", claim, leftAlone)
				}
			}
			for _, warning := range h.warnings() {
				if strings.Contains(warning, "NodeLost") && strings.Contains(warning, "node n1,") {
					t.Errorf("the node is called lost: %s", warning)
				}
			}
		})
	}
}

func TestANodeThatIsRegisteredAgainIsNotLost(t *testing.T) {
	var clock testClock
	h := newHarness(t, clock.set)
	h.node("n1", gib)
	h.class("carve", recreate)
	h.run()
	h.boundVolume("c", "n1")
	h.addNodesToLose()
	clock.stop()
	h.cutOff("n1")
	h.deleteNode("n1")
	noted := func() bool {
		noted := slices.Contains(h.c.core.Losses.Nodes(), "n1")
		return noted
	}
	waittest.Until(h.t, "the controller notes that the Node object is gone", noted)
	clock.advance(h.c.core.Losses.Grace / 2)
	h.node("n1", 0)
	waittest.Until(h.t, "the controller notes that it is back", func() bool { return !noted() })
	clock.advance(leftAlone)
	h.loseNodes()
	if h.claimIsGone("c") || h.pv("pvc-uid-c") == nil {
		t.Error("a claim was given up")
	}
}

// The claim goes with its Pod. Kubernetes removes Pods from such a node; here the test does.
func TestEphemeralVolumesOfANodeThatIsLostGoWithTheirPodsWhateverTheirClassSays(t *testing.T) {
	for name, lose := range losing {
		for policy, class := range map[string]func(*storagev1.StorageClass){names.NodeLossKeep: nil, names.NodeLossRecreate: recreate} {
			t.Run(name+", "+policy, func(t *testing.T) {
				t.Parallel()
				h := newHarness(t)
				h.node("n1", gib)
				h.class("carve", class)
				h.run()
				h.claim("c", "n1", ofPod)
				waittest.Until(h.t, "claim is bound", h.bound("c"))
				h.net.Detach("n1")
				lose(h, "n1")
				for range 2 { // the claim and the Pod
					h.event("Warning NodeLost", "n1", "goes with its Pod")
				}
				if h.claimIsGone("c") || h.volumes() != 1 {
					t.Fatal("the claim was deleted before its Pod")
				}
				h.deleteClaim("c")
				waittest.Until(h.t, "the volume is gone with its claim", func() bool { return h.volumes() == 0 })
			})
		}
	}
}

// Kubernetes keeps a Pod without a node, and recreates its deleted claim.
func TestClaimOfUnplacedPodIsDeletedWithLostNodeWhateverItsClass(t *testing.T) {
	for name, lose := range losing {
		for policy, class := range map[string]func(*storagev1.StorageClass){names.NodeLossKeep: nil, names.NodeLossRecreate: recreate} {
			t.Run(name+", "+policy, func(t *testing.T) {
				t.Parallel()
				h := newHarness(t)
				h.node("n1", gib)
				h.class("carve", class)
				h.run()
				h.unscheduled("web", inTemplate("scratch"))
				h.claim("web-scratch", "n1", ofWeb("100Mi"))
				waittest.Until(h.t, "claim is bound", h.bound("web-scratch"))
				h.placed("second", "n1", v1.PodPending, byName("web-scratch")) // ends with its node
				h.net.Detach("n1")
				lose(h, "n1")
				h.event("Warning NodeLost", "n1", "its Pod was never on a node", "made again elsewhere")
				waittest.Until(h.t, "claim and volume are gone", func() bool { return h.claimIsGone("web-scratch") && h.volumes() == 0 })
			})
		}
	}
}

// The cache lags behind the API server, where the Pod has its node.
func TestClaimOfPlacedPodIsKeptWhenCacheIsOutdated(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", recreate)
	h.run()
	h.unscheduled("web", inTemplate("scratch"))
	h.claim("web-scratch", "n1", ofWeb("100Mi"))
	waittest.Until(h.t, "claim is bound", h.bound("web-scratch"))
	h.addNodesToLose()
	var reads atomic.Int32
	h.react("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		list, ok := action.(clienttesting.ListAction)
		if !ok || list.GetListRestrictions().Fields.String() != "metadata.name=web" {
			return false, nil, nil
		}
		reads.Add(1)
		return true, &v1.PodList{Items: []v1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "uid-web"}, Spec: v1.PodSpec{NodeName: "n1"}}}}, nil
	})
	h.net.Detach("n1")
	h.taint("n1", v1.TaintNodeOutOfService)
	h.loseNodes() // checks n1 again
	if reads.Load() == 0 || h.claimIsGone("web-scratch") || h.pv("pvc-uid-web-scratch") == nil {
		t.Errorf("claim deleted: %t, after %d reads of its Pod", h.claimIsGone("web-scratch"), reads.Load())
	}
}

func TestAnEphemeralClaimOfALostNodeIsNotDeleted(t *testing.T) {
	for name, pods := range map[string]func(*harness){
		"whose Pod has the node": func(h *harness) {
			h.placed("web", "n1", v1.PodPending, inTemplate("scratch"))
			h.unscheduled("second", byName("web-scratch"))
		},
		"whose Pod is made again": func(h *harness) {
			h.pending("web", func(pod *v1.Pod) { pod.UID = "uid-of-the-next" })
		},
		"whose Pod is being deleted": func(h *harness) {
			h.pending("web", func(pod *v1.Pod) {
				now := metav1.Now()
				pod.DeletionTimestamp, pod.Finalizers = &now, []string{"example.com/held"}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			h.node("n1", gib)
			h.class("carve", recreate)
			h.run()
			pods(h)
			h.claim("web-scratch", "n1", ofWeb("100Mi"))
			waittest.Until(h.t, "claim is bound", h.bound("web-scratch"))
			h.addNodesToLose()
			h.net.Detach("n1")
			h.taint("n1", v1.TaintNodeOutOfService)
			h.event("Warning NodeLost", "n1", "goes with its Pod")
			h.loseNodes() // checks n1 again
			if h.claimIsGone("web-scratch") || h.pv("pvc-uid-web-scratch") == nil {
				t.Error("the claim was deleted")
			}
		})
	}
}

func (h *harness) pending(name string, change func(*v1.Pod)) {
	h.t.Helper()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: v1.PodSpec{Volumes: []v1.Volume{inTemplate("scratch")}}}
	change(pod)
	must.Get(h.client.CoreV1().Pods("default").Create(h.t.Context(), pod, metav1.CreateOptions{}))(h.t)
}

func TestPodsThatUseAKeptVolumeOfALostNodeAreNotifiedOnceEach(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.boundVolume("c", "n1")
	h.pod("user", "n1", "c", v1.PodRunning)
	h.pod("done", "n1", "c", v1.PodSucceeded)
	h.pod("other", "n1", "another", v1.PodRunning)
	h.addNodesToLose()
	h.drain()
	h.net.Detach("n1")
	h.deleteNode("n1")
	said := []string{"Warning NodeLost", "n1", "kept", "Delete the claim only if"}
	for range 2 { // the claim and the Pod
		h.event(said...)
	}
	// The StatefulSet's replacement.
	h.unscheduled("db-0", byName("c"))
	h.event(said...)
	h.unscheduled("db-1", byName("c"))
	h.event(said...)
	h.loseNodes() // checks n1 again
	for _, e := range h.drain() {
		if strings.Contains(e, "NodeLost") && strings.Contains(e, "node n1,") {
			t.Errorf("reported again: %s", e)
		}
	}
}
