package controller

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func movable(c *storagev1.StorageClass) {
	c.Parameters = map[string]string{names.ParamPodVolumes: names.PodVolumesMovable}
}

// ownedPod makes a StatefulSet's Pod with the ephemeral claim NAME-data.
func (h *harness) ownedPod(name, node string) *v1.Pod {
	h.t.Helper()
	yes := true
	return must.Get(h.client.CoreV1().Pods("default").Create(h.t.Context(), &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "set", Controller: &yes}}},
		Spec: v1.PodSpec{NodeName: node, Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
			Ephemeral: &v1.EphemeralVolumeSource{VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{}}}}}},
		Status: v1.PodStatus{Phase: v1.PodPending},
	}, metav1.CreateOptions{}))(h.t)
}

func (h *harness) ownedClaim(pod *v1.Pod, node string) *v1.PersistentVolume {
	h.t.Helper()
	h.claim(pod.Name+"-data", node, func(c *v1.PersistentVolumeClaim) {
		c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, v1.SchemeGroupVersion.WithKind("Pod"))}
	})
	waittest.Until(h.t, "claim is bound", h.bound(pod.Name+"-data"))
	return h.pv("pvc-uid-" + pod.Name + "-data")
}

// pinnedTo reports whether a volume has a nodeAffinity, which must name the node.
func (h *harness) pinnedTo(volume, node string) func() bool {
	return func() bool {
		pv := h.pv(volume)
		if pv == nil || pv.Spec.NodeAffinity == nil {
			return false
		}
		if on, _ := objects.NodeOf(pv); on != node {
			h.t.Fatalf("%s is pinned to %q", volume, on)
		}
		return true
	}
}

func TestOnlyVolumesThatEndWithTheirPodAreMovable(t *testing.T) {
	for name, test := range map[string]struct {
		class  func(*storagev1.StorageClass)
		change func(*v1.PersistentVolumeClaim)
		pinned bool
	}{
		"of a generic ephemeral volume":                              {class: movable},
		"of a class that says nothing":                               {class: func(*storagev1.StorageClass) {}, pinned: true},
		"of a claim that outlives its Pods":                          {class: movable, change: func(c *v1.PersistentVolumeClaim) { c.OwnerReferences = nil }, pinned: true},
		"of a claim that belongs to an object of another kind":       {class: movable, change: func(c *v1.PersistentVolumeClaim) { c.OwnerReferences[0].Kind = "Job" }, pinned: true},
		"of a generic ephemeral volume that has a source":            {class: movable, change: cloneOf("src"), pinned: true},
		"of a claim that has a Pod as its owner, not its controller": {class: movable, change: func(c *v1.PersistentVolumeClaim) { no := false; c.OwnerReferences[0].Controller = &no }, pinned: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t, func(c *Controller) { c.core.pinGrace = time.Hour })
			h.source()
			at := "moving"
			h.class(at, test.class)
			pod := h.ownedPod("db-0", "")
			h.claim("c", "n2", func(c *v1.PersistentVolumeClaim) {
				c.Spec.StorageClassName = &at
				c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, v1.SchemeGroupVersion.WithKind("Pod"))}
				if test.change != nil {
					test.change(c)
				}
			})
			waittest.Until(t, "claim is bound", h.bound("c"))
			pv := h.pv("pvc-uid-c")
			recorded, has := objects.RecordedNode(pv)
			if on, _ := objects.NodeOf(pv); on != "n2" || (pv.Spec.NodeAffinity != nil) != test.pinned || has == test.pinned {
				t.Errorf("on %q, recorded %q, affinity %v", on, recorded, pv.Spec.NodeAffinity)
			}
		})
	}
}

func TestAMovableVolumeIsPinnedWhereItsPodCouldGoElsewhere(t *testing.T) {
	for name, act := range map[string]func(*harness, *v1.PersistentVolume){
		"its Pod has no node": func(*harness, *v1.PersistentVolume) {},
		"a second Pod names the claim": func(h *harness, _ *v1.PersistentVolume) {
			must.Get(h.client.CoreV1().Pods("default").Create(h.t.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "other", UID: "uid-other"},
				Spec: v1.PodSpec{Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
					PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "db-0-data"}}}}},
				Status: v1.PodStatus{Phase: v1.PodPending}}, metav1.CreateOptions{}))(h.t)
		},
		"its class is made again as a pinned one": func(h *harness, _ *v1.PersistentVolume) {
			must.Succeed(h.t, h.client.StorageV1().StorageClasses().Delete(h.t.Context(), "carve", metav1.DeleteOptions{}))
			h.class("carve", nil)
		},
		"it is to be retained": func(h *harness, pv *v1.PersistentVolume) {
			pv = pv.DeepCopy()
			pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
			must.Get(h.client.CoreV1().PersistentVolumes().Update(h.t.Context(), pv, metav1.UpdateOptions{}))(h.t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			grace := time.Hour // only the first is pinned, by the Pod without a node
			if name == "its Pod has no node" {
				grace = time.Millisecond
			}
			h := newHarness(t, func(c *Controller) { c.core.pinGrace = grace })
			h.node("n1", gib)
			h.node("n2", gib)
			h.class("carve", movable)
			h.run()
			pv := h.ownedClaim(h.ownedPod("db-0", ""), "n1")
			act(h, pv)
			waittest.Until(t, "it is pinned", h.pinnedTo(pv.Name, "n1"))
		})
	}
}

func TestAMovableVolumeStaysSoOnceItsPodIsThere(t *testing.T) {
	h := newHarness(t, func(c *Controller) { c.core.pinGrace = time.Millisecond })
	h.node("n1", gib)
	h.node("n2", gib)
	h.class("carve", movable)
	h.run()
	pv := h.ownedClaim(h.ownedPod("db-0", "n1"), "n1")
	// A later volume is pinned: then this one has been checked.
	later := h.ownedClaim(h.ownedPod("db-1", ""), "n2")
	waittest.Until(t, "the later one is pinned", h.pinnedTo(later.Name, "n2"))
	if now := h.pv(pv.Name); now.Spec.NodeAffinity != nil {
		t.Errorf("pinned: %v", now.Spec.NodeAffinity)
	}
}

func TestAPodOnAnotherNodeThanItsVolumeIsMadeAgain(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*v1.Pod)
		stays  bool
		words  []string
	}{
		"a Pod of a StatefulSet": {change: func(*v1.Pod) {}, words: []string{"claim db-0-data", "on node n1, not on node n2", "StatefulSet db makes it again"}},
		"a Pod of its own": {change: func(p *v1.Pod) { p.OwnerReferences = nil }, stays: true,
			words: []string{"claim db-0-data", "on node n1, not on node n2", "delete the Pod"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t, func(c *Controller) { c.core.pinGrace = time.Hour })
			h.node("n1", gib)
			h.node("n2", gib)
			h.class("carve", movable)
			h.run()
			pod := h.ownedPod("db-0", "")
			pv := h.ownedClaim(pod, "n1")
			pod = pod.DeepCopy()
			pod.Spec.NodeName = "n2"
			test.change(pod)
			pods := h.client.CoreV1().Pods("default")
			must.Get(pods.Update(t.Context(), pod, metav1.UpdateOptions{}))(t)
			h.event(append(test.words, "Warning PodMisplaced")...)
			waittest.Until(t, "it is pinned", h.pinnedTo(pv.Name, "n1"))
			if _, err := pods.Get(t.Context(), "db-0", metav1.GetOptions{}); (err == nil) != test.stays {
				t.Errorf("the Pod: %v", err)
			}
		})
	}
}

// A Pod that no controller recreates waits on a wrong node, while its claim changes.
func TestAMisplacedPodHasOneEvent(t *testing.T) {
	h := newHarness(t, func(c *Controller) { c.core.pinGrace = time.Hour })
	h.node("n1", gib)
	h.node("n2", gib)
	h.class("carve", movable)
	h.run()
	pod := h.ownedPod("db-0", "")
	h.ownedClaim(pod, "n1")
	pod = pod.DeepCopy()
	pod.Spec.NodeName, pod.OwnerReferences = "n2", nil
	must.Get(h.client.CoreV1().Pods("default").Update(t.Context(), pod, metav1.UpdateOptions{}))(t)
	h.event("PodMisplaced", "claim db-0-data")
	var looks atomic.Int32
	h.react("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if list, ok := action.(clienttesting.ListAction); ok && list.GetListRestrictions().Fields.String() == "spec.nodeName=n2" {
			looks.Add(1)
		}
		return false, nil, nil
	})
	for i := range int32(3) {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{"version":"%d"}}}`, i)
		must.Get(h.client.CoreV1().PersistentVolumeClaims("default").Patch(t.Context(), "db-0-data", types.MergePatchType, patch, metav1.PatchOptions{}))(t)
		waittest.Until(t, "it is looked at again", func() bool { return looks.Load() > i })
	}
	// By the third check, the Events of the earlier ones have been sent.
	if again := h.warnings(); len(again) > 0 {
		t.Errorf("again: %q", again)
	}
}

func TestAClassOfMovableVolumesThatCannotBeIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*storagev1.StorageClass)
		words  []string
	}{
		"with another word":      {func(c *storagev1.StorageClass) { c.Parameters[names.ParamPodVolumes] = "free" }, []string{`"free"`, "pinned, movable"}},
		"with Immediate":         {immediate, []string{"Immediate", "WaitForFirstConsumer"}},
		"with the policy Retain": {func(c *storagev1.StorageClass) { keep := v1.PersistentVolumeReclaimRetain; c.ReclaimPolicy = &keep }, []string{"Retain", "allowed: Delete"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			h.node("n1", gib)
			h.class("carve", func(c *storagev1.StorageClass) { movable(c); test.change(c) })
			h.run()
			h.claim("c", "n1", func(c *v1.PersistentVolumeClaim) {
				c.Annotations["volume.kubernetes.io/storage-provisioner"] = names.Driver
				c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("100Mi")
			})
			h.event(append(test.words, "Warning ProvisioningFailed", names.ParamPodVolumes)...)
		})
	}
}
