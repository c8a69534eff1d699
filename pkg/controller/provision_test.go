package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-helpers/storage/volume"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/controller/provision"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/scheduler"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestAClaimThatChoseANodeBecomesAVolumeThere(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.node("n2", gib)
	h.class("carve", nil)
	h.run()
	h.claim("c", "n1", nil)
	waittest.Until(h.t, "claim is bound", h.bound("c"))

	pv := h.pv("pvc-uid-c")
	vol := node.Volumes()["pvc-uid-c"]
	if vol == nil {
		t.Fatal("no volume on the node")
	}
	claim := h.getClaim("c")
	for what, ok := range map[string]bool{
		"provisioned-by":      pv.Annotations[volume.AnnDynamicallyProvisioned] == names.Driver,
		"finalizer":           slices.Contains(pv.Finalizers, cluster.Finalizer),
		"claimRef":            pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == claim.UID && pv.Spec.ClaimRef.Kind == "PersistentVolumeClaim",
		"handle":              pv.Spec.CSI.VolumeHandle == vol.GetId(),
		"driver":              pv.Spec.CSI.Driver == names.Driver,
		"fsType":              pv.Spec.CSI.FSType == "ext4",
		"device class":        pv.Spec.CSI.VolumeAttributes[names.ContextDeviceClass] == "local",
		"identity":            pv.Spec.CSI.VolumeAttributes[provision.IdentityKey] != "",
		"capacity":            pv.Spec.Capacity.Storage().Value() == vol.GetSizeBytes(),
		"reclaim policy":      pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete,
		"mount options":       slices.Equal(pv.Spec.MountOptions, []string{"noatime"}),
		"class":               pv.Spec.StorageClassName == "carve",
		"owner":               vol.GetOwner().GetClaimName() == "c" && vol.GetOwner().GetClusterId() == "cluster" && vol.GetOwner().GetClaimUid() == "uid-c",
		"phase":               pv.Status.Phase == v1.VolumeBound,
		"claim's annotations": claim.Annotations[volume.AnnBindCompleted] == "yes" && claim.Annotations[volume.AnnBoundByController] == "yes",
		"claim's capacity":    claim.Status.Capacity.Storage().Value() == vol.GetSizeBytes(),
		"claim's modes":       slices.Equal(claim.Status.AccessModes, claim.Spec.AccessModes),
	} {
		if !ok {
			t.Errorf("%s is wrong: %+v / %+v", what, pv, claim)
		}
	}
	if got, _ := objects.NodeOf(pv); got != "n1" {
		t.Errorf("affinity to %q", got)
	}
	h.idle()
	if events := h.unread(); len(events) > 0 {
		t.Errorf("Events for a claim that had its volume at once: %q", events)
	}
}

func TestEventsFollowACreateThatIsSlow(t *testing.T) {
	h := newHarness(t, func(c *Controller) { c.core.slowCreate = time.Millisecond })
	node := h.node("n1", gib)
	entered, release := make(chan struct{}), make(chan struct{})
	node.SetHooks(lvmdfake.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error {
		entered <- struct{}{}
		<-release
		return nil
	}})
	h.class("carve", nil)
	h.run()
	h.claim("c", "n1", nil)
	<-entered
	h.event("Normal Provisioning External provisioner is provisioning volume for claim \"default/c\"")
	close(release)
	h.event("Normal ProvisioningSucceeded Successfully provisioned volume pvc-uid-c")
}

func TestAnEventFollowsASuccessThatAFailureWentBefore(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	var calls atomic.Int32
	node.SetHooks(lvmdfake.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error {
		if calls.Add(1) == 1 {
			return lvmdfake.Error(codes.Internal, names.ReasonCommandFailed, "lvcreate failed")
		}
		return nil
	}})
	h.class("carve", nil)
	h.run()
	h.claim("c", "n1", nil)
	h.event("Warning ProvisioningFailed", "lvcreate failed")
	h.event("Normal ProvisioningSucceeded Successfully provisioned volume pvc-uid-c")
}

func (h *harness) countWrites() func() map[string]int {
	var mu sync.Mutex
	counts := map[string]int{}
	h.react("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		resource := action.GetResource().Resource
		if verb := action.GetVerb(); !slices.Contains([]string{"get", "list", "watch"}, verb) {
			if sub := action.GetSubresource(); sub != "" {
				resource += "/" + sub
			}
			counts[verb+" "+resource]++
		}
		return false, nil, nil
	})
	return func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(counts)
	}
}

func TestWhatThePVControllerDoesInTimeIsNotWrittenTwice(t *testing.T) {
	began, passed := time.Now(), atomic.Int64{}
	h := newHarness(t, func(c *Controller) {
		c.core.Now = func() time.Time { return began.Add(time.Duration(passed.Load())) }
	})
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	waittest.Until(t, "the capacity is published", h.capacityIs("n1", gib))
	writes := h.countWrites()
	h.claim("c", "n1", nil)
	waittest.Until(t, "the volume exists", func() bool { return h.pv("pvc-uid-c") != nil })
	waittest.Until(t, "less capacity is published", h.capacityIs("n1", gib-100*mib))

	// The PV controller's writes bypass clients and are not counted.
	setPhase := func(phase v1.PersistentVolumePhase) {
		pv := h.pv("pvc-uid-c").DeepCopy()
		pv.Status.Phase = phase
		must.Succeed(t, h.client.Tracker().Update(v1.SchemeGroupVersion.WithResource("persistentvolumes"), pv, ""))
	}
	setPhase(v1.VolumeBound)
	claim := h.getClaim("c").DeepCopy()
	claim.Annotations[volume.AnnBindCompleted] = "yes"
	claim.Spec.VolumeName, claim.Status.Phase = "pvc-uid-c", v1.ClaimBound
	claim.Status.Capacity, claim.Status.AccessModes = claim.Spec.Resources.Requests, claim.Spec.AccessModes
	claims := v1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	must.Succeed(t, h.client.Tracker().Update(claims, claim, "default"))
	h.idle()
	must.Succeed(t, h.client.Tracker().Delete(claims, "default", "c"))
	setPhase(v1.VolumeReleased)
	waittest.Until(t, "the volume is gone", func() bool { return h.volumes() == 0 })
	waittest.Until(t, "the capacity is published again", func() bool {
		passed.Add(int64(time.Second)) // increases are published with a delay
		return h.capacityIs("n1", gib)()
	})
	want := map[string]int{"create persistentvolumeclaims": 1, // by the test
		"create persistentvolumes": 1, "delete persistentvolumes": 1, "patch persistentvolumes": 1, "update csistoragecapacities": 2}
	waittest.Until(t, "the finalizer is removed", func() bool { return writes()["patch persistentvolumes"] > 0 })
	got := writes()
	if !maps.Equal(got, want) {
		t.Errorf("writes %v, want %v", got, want)
	}
}

func (h *harness) idle() {
	h.t.Helper()
	p := h.leader().provisioner
	waittest.Until(h.t, "no claim is carried out", p.Idle)
}

func TestRawBlockAndRetainAndXFS(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", func(c *storagev1.StorageClass) {
		retain := v1.PersistentVolumeReclaimRetain
		c.ReclaimPolicy = &retain
		c.Parameters = map[string]string{names.ParamFSType: "xfs", names.ParamDeviceClass: "local"}
	})
	h.run()
	block := v1.PersistentVolumeBlock
	h.claim("block", "n1", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block })
	h.claim("file", "n1", nil)
	waittest.Until(h.t, "both are bound", func() bool { return h.bound("block")() && h.bound("file")() })
	if pv := h.pv("pvc-uid-block"); pv.Spec.CSI.FSType != "" || *pv.Spec.VolumeMode != block || len(pv.Finalizers) != 0 {
		t.Errorf("block volume: %+v", pv)
	}
	if v := node.Volumes()["pvc-uid-block"]; v.GetMode() != lvmdv1.VolumeMode_VOLUME_MODE_BLOCK || v.GetFsType() != "" {
		t.Errorf("block volume on the node: %v", v)
	}
	if pv := h.pv("pvc-uid-file"); pv.Spec.CSI.FSType != "xfs" {
		t.Errorf("file system %q, want xfs", pv.Spec.CSI.FSType)
	}
}

// lookTwice makes the controller, which works inTurn, check a claim with a PersistentVolume,
// and again after the PV controller was away for long. The create of another claim's volume
// proves that it is done.
func (h *harness) lookTwice(claim string, skew *atomic.Int64) {
	h.t.Helper()
	waittest.Until(h.t, "the volume is in the cache", func() bool { _, err := h.c.core.VolumeLister.Get("pvc-uid-" + claim); return err == nil })
	for range 2 {
		h.touch(claim)
		h.passed++
		later := fmt.Sprintf("later-%d", h.passed)
		h.claim(later, "n1", nil)
		waittest.Until(h.t, "the volume of another claim exists", func() bool { return h.pv("pvc-uid-"+later) != nil })
		skew.Add(int64(time.Hour))
	}
}

func TestTheBindingIsLeftToThePVController(t *testing.T) {
	var skew atomic.Int64
	h := newHarness(t, skewedBy(&skew), inTurn)
	h.pvController.Stop()
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.claim("c", "n1", nil)
	waittest.Until(h.t, "volume exists", func() bool { return h.pv("pvc-uid-c") != nil })
	h.lookTwice("c", &skew)
	if claim := h.getClaim("c"); claim.Spec.VolumeName != "" || h.pv("pvc-uid-c").Status.Phase == v1.VolumeBound {
		t.Errorf("the controller bound the claim itself: %+v", claim)
	}
}

func TestMistakesAreEventsOnTheClaimAndNothingIsMade(t *testing.T) {
	for name, test := range map[string]struct {
		class  func(*storagev1.StorageClass)
		claim  func(*v1.PersistentVolumeClaim)
		expect []string
	}{
		"an unknown parameter": {
			class:  func(c *storagev1.StorageClass) { c.Parameters = map[string]string{"carve.csi.local/devcie-class": "x"} },
			expect: []string{"StorageClass carve: parameters", `key "carve.csi.local/devcie-class"`, "allowed: carve.csi.local/device-class, carve.csi.local/on-node-loss", "csi.storage.k8s.io/fstype", "carve.csi.local/mkfs-label"}},
		"an unknown file system": {
			class:  func(c *storagev1.StorageClass) { c.Parameters = map[string]string{names.ParamFSType: "ntfs"} },
			expect: []string{"parameters[csi.storage.k8s.io/fstype]", `"ntfs"`, "allowed: btrfs, ext4, xfs"}},
		"an unknown value for the loss of a node": {
			class:  func(c *storagev1.StorageClass) { c.Parameters = map[string]string{names.ParamOnNodeLoss: "panic"} },
			expect: []string{"parameters[carve.csi.local/on-node-loss]", `"panic"`, "allowed: keep, recreate"}},
		"an unknown placement": {
			class:  func(c *storagev1.StorageClass) { c.Parameters = map[string]string{names.ParamPlacement: "random"} },
			expect: []string{"parameters[carve.csi.local/placement]", `"random"`, "allowed: most-free, least-free, fewest-volumes"}},
		"a device class that the selected node does not have": {
			class:  func(c *storagev1.StorageClass) { c.Parameters = map[string]string{names.ParamDeviceClass: "fast"} },
			expect: []string{"parameters[carve.csi.local/device-class]", `"fast", which node n1 does not have`, `allowed: ["local"]`}},
		"a volume for many writers": {
			claim: func(c *v1.PersistentVolumeClaim) {
				c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
			},
			expect: []string{"spec.accessModes", "ReadWriteMany", "allowed: ReadWriteOnce, ReadWriteOncePod"}},
		"a volume for many readers": {
			claim: func(c *v1.PersistentVolumeClaim) {
				c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}
			},
			expect: []string{"spec.accessModes", "ReadOnlyMany", "allowed: ReadWriteOnce, ReadWriteOncePod"}},
		"a volume for one writer or many readers": {
			claim: func(c *v1.PersistentVolumeClaim) {
				c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany}
			},
			expect: []string{"spec.accessModes", "ReadOnlyMany", "allowed: ReadWriteOnce, ReadWriteOncePod"}},
		"a size of zero": {
			claim: func(c *v1.PersistentVolumeClaim) {
				c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("0")
			},
			expect: []string{"spec.resources.requests.storage", "0 is not allowed"}},
		"a size beyond all numbers": {
			claim: func(c *v1.PersistentVolumeClaim) {
				c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("100E")
			},
			expect: []string{"spec.resources.requests.storage", "allowed: 1 to"}},
		"a selector": {
			claim:  func(c *v1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} },
			expect: []string{"spec.selector"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			node := h.node("n1", gib)
			h.class("carve", test.class)
			h.run()
			h.claim("c", "n1", test.claim)
			h.event(append([]string{"Warning ProvisioningFailed"}, test.expect...)...)
			waittest.Until(h.t, "nothing is reserved", func() bool { return h.c.core.ledger.Reservations() == 0 })
			if node.Creates() != 0 || h.volumes() != 0 {
				t.Errorf("%d creates, %d PersistentVolumes", node.Creates(), h.volumes())
			}
		})
	}
}

func TestAClaimOnAFullNodeIsRescheduledAtOnceAndAnotherOneServesIt(t *testing.T) {
	h := newHarness(t)
	h.node("n1", 40*mib)
	n2 := h.node("n2", gib)
	h.class("carve", nil)
	h.run()
	h.claim("c", "n1", nil)
	h.event("Warning ProvisioningFailed", "node n1", "104857600 bytes asked for")
	waittest.Until(h.t, "selected node is removed", func() bool {
		_, has := h.getClaim("c").Annotations[volume.AnnSelectedNode]
		return !has
	})
	waittest.Until(h.t, "reservation is gone", func() bool { return h.c.core.ledger.Reservations() == 0 })
	h.selectNode("c", "n2")
	waittest.Until(h.t, "claim is bound", h.bound("c"))
	if n2.Volumes()["pvc-uid-c"] == nil {
		t.Error("no volume on n2")
	}
}

func TestAClaimDeletedWhileItsVolumeIsMadeLeavesNothingBehind(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	entered, release := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	node.SetHooks(lvmdfake.Hooks{AfterCreate: func(context.Context, *lvmdv1.Volume) error {
		if once.CompareAndSwap(false, true) {
			close(entered)
			<-release
			return status.Error(codes.Unavailable, "the answer was lost")
		}
		return nil
	}})
	h.run()
	h.claim("c", "n1", nil)
	<-entered
	h.deleteClaim("c")
	waittest.Until(h.t, "deletion is seen", func() bool { return h.c.core.Claim("uid-c") == nil })
	close(release)
	waittest.Until(h.t, "volume is gone", func() bool { return len(node.Volumes()) == 0 })
	if h.volumes() != 0 {
		t.Error("a PersistentVolume was left")
	}
	waittest.Until(h.t, "capacity is back", h.capacityIs("n1", gib))
}

func TestANodeThatNeverConnectsIsNotAskedAndTheClaimWaitsForIt(t *testing.T) {
	h := newHarness(t)
	h.node("n1", 0)
	h.class("carve", nil)
	h.run()
	h.claim("c", "n1", nil)
	waittest.Until(h.t, "claim is reserved", func() bool { return h.c.core.ledger.Reservations() == 1 })
	h.node("n2", gib)
	h.boundVolume("other", "n2")
	if _, has := h.getClaim("c").Annotations[volume.AnnSelectedNode]; !has {
		t.Fatal("the claim was rescheduled at once")
	}
	s := lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib})
	h.attach(s, "n1")
	waittest.Until(h.t, "claim is bound", h.bound("c"))
}

func TestAClaimOnANodeThatLeftTheClusterIsRescheduled(t *testing.T) {
	h := newHarness(t)
	h.class("carve", nil)
	h.run()
	h.claim("c", "never-was", nil)
	h.event("Warning ProvisioningFailed", "node never-was is not in the cluster any more")
	waittest.Until(h.t, "selected node is removed", func() bool {
		_, has := h.getClaim("c").Annotations[volume.AnnSelectedNode]
		return !has
	})
}

func (h *harness) rescheduled(name string) bool {
	_, has := h.getClaim(name).Annotations[volume.AnnSelectedNode]
	return !has
}

// waitBeyondTimeout advances the clock past the wait for unconnected nodes until the claim
// gets an Event with these parts.
func (h *harness) waitBeyondTimeout(skew *atomic.Int64, claim string, parts ...string) {
	h.t.Helper()
	waittest.Until(h.t, "the claim waits in vain", func() bool {
		skew.Add(int64(provision.RescheduleUnreachable + time.Second))
		h.touch(claim)
		return slices.ContainsFunc(h.drain(), func(e string) bool {
			return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(e, part) })
		})
	})
}

func TestAClaimIsRescheduledThatWaitedForANodeInVain(t *testing.T) {
	var skew atomic.Int64
	h := newHarness(t, skewedBy(&skew))
	h.node("n1", 0)
	h.class("carve", nil)
	h.run()
	h.leader()
	h.claim("c", "n1", nil)
	h.waitBeyondTimeout(&skew, "c", "Warning ProvisioningFailed", "node n1 is not connected", "30s", "another node")
	waittest.Until(h.t, "the claim is rescheduled", func() bool { return h.rescheduled("c") })
	waittest.Until(h.t, "nothing is reserved", func() bool { return h.c.core.ledger.Reservations() == 0 })
}

func TestAClaimThatWaitsForANodeIsRescheduledWhenTheNodeIsLost(t *testing.T) {
	for name, lose := range losing {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			h.node("n1", 0)
			h.class("carve", nil)
			h.run()
			h.claim("c", "n1", nil)
			waittest.Until(h.t, "claim is reserved", func() bool { return h.c.core.ledger.Reservations() == 1 })
			lose(h, "n1")
			h.event("Warning ProvisioningFailed", "node n1 is not in the cluster any more, or out of service")
			waittest.Until(h.t, "the claim is rescheduled", func() bool { return h.rescheduled("c") })
		})
	}
}

func mustClass(t *testing.T, h *harness) *storagev1.StorageClass {
	t.Helper()
	class := must.Get(h.client.StorageV1().StorageClasses().Get(t.Context(), "carve", metav1.GetOptions{}))(t)
	return class
}

func TestABurstNeverOverfillsANodeAndAllFitsExactly(t *testing.T) {
	h := newHarness(t)
	const count = 20
	node := h.node("n1", count*100*mib)
	h.class("carve", nil)
	h.run()
	for i := range count {
		h.claim(fmt.Sprint("c", i), "n1", nil)
	}
	waittest.Until(h.t, "all are bound", func() bool {
		for i := range count {
			if !h.bound(fmt.Sprint("c", i))() {
				return false
			}
		}
		return true
	})
	if len(node.Volumes()) != count {
		t.Errorf("%d volumes", len(node.Volumes()))
	}
	waittest.Until(h.t, "capacity is zero", h.capacityIs("n1", 0))
	waittest.Until(h.t, "no reservation is left", func() bool { return h.c.core.ledger.Reservations() == 0 })
}

func TestClaimsOfOthersAreLeftAlone(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", func(c *storagev1.StorageClass) { c.Provisioner = "other.csi" })
	h.class("mine", nil)
	h.run()
	h.claim("other", "n1", nil)
	h.claim("annotated", "n1", func(c *v1.PersistentVolumeClaim) {
		mine := "mine"
		c.Spec.StorageClassName = &mine
		c.Annotations[volume.AnnStorageProvisioner] = "other.csi"
	})
	h.claim("populated", "n1", func(c *v1.PersistentVolumeClaim) {
		mine, group := "mine", "example.com"
		c.Spec.StorageClassName = &mine
		c.Spec.DataSourceRef = &v1.TypedObjectReference{APIGroup: &group, Kind: "Book", Name: "b"}
	})
	mine := "mine"
	h.claim("mine", "n1", func(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName = &mine })
	waittest.Until(h.t, "another one is bound", h.bound("mine"))
	if node.Creates() != 1 {
		t.Errorf("%d volumes were made, want one", node.Creates())
	}
}

// A claim may change while its attempt ends.
func TestWhatIsReservedForAClaimThatWasJustForgottenEnds(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.boundVolume("c", "n1")
	waittest.Until(h.t, "n1 is published", h.capacityIs("n1", gib-100*mib))
	p := h.leader().provisioner
	for _, uid := range []string{"uid-c", "uid-of-one-that-is-gone"} {
		waittest.Until(h.t, "no attempt works on "+uid, func() bool { return !p.Busy(uid) })
		h.c.core.ledger.Reserve(scheduler.Reservation{Claim: uid, Volume: "pvc-other-" + uid, Node: "n1", Bytes: 100 * mib, Deadline: time.Now().Add(time.Hour)})
		h.leader().publisher.NodeChanged("n1")
		waittest.Until(h.t, "it is reserved for "+uid, h.capacityIs("n1", gib-200*mib))
		p.Add(uid)
		waittest.Until(h.t, "nothing is reserved for "+uid, h.capacityIs("n1", gib-100*mib))
	}
}
