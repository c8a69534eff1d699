package controller

import (
	"context"
	"slices"
	"strings"
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
	"github.com/carve-csi/carve/pkg/controller/provision"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func cloneOf(source string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		c.Spec.DataSource = &v1.TypedLocalObjectReference{Kind: spec.KindClaim, Name: source}
		c.Spec.DataSourceRef = &v1.TypedObjectReference{Kind: spec.KindClaim, Name: source}
	}
}

func (h *harness) protected(name string) bool { return provision.IsProtected(h.getClaim(name)) }

// source makes nodes n1 and n2, and claim "src" with a volume on n2.
func (h *harness) source() (n1, n2 *lvmdfake.Server) {
	h.t.Helper()
	n1, n2 = h.node("n1", gib), h.node("n2", gib)
	h.class("carve", nil)
	h.run()
	h.claim("src", "n2", nil)
	waittest.Until(h.t, "source is bound", h.bound("src"))
	return n1, n2
}

func TestACloneIsMadeOnItsSourcesNodeAndTheSourceIsProtectedMeanwhile(t *testing.T) {
	for name, selected := range map[string]string{
		"before the scheduler chose a node":        "",
		"when the scheduler chose the right node":  "n2",
		"when the scheduler chose the wrong node":  "n1",
		"when the scheduler chose an unknown node": "n9",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			n1, n2 := h.source()
			var unprotected atomic.Int32
			n2.SetHooks(lvmdfake.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error {
				if !h.protected("src") {
					unprotected.Add(1)
				}
				return nil
			}})
			h.claim("c", selected, cloneOf("src"))
			waittest.Until(h.t, "clone is bound", h.bound("c"))
			waittest.Until(h.t, "source is not protected any more", func() bool { return !h.protected("src") })
			src, clone := n2.Volumes()["pvc-uid-src"], n2.Volumes()["pvc-uid-c"]
			if clone.GetSource().GetVolumeId() != src.GetId() {
				t.Errorf("clone %v of %v", clone, src)
			}
			if n1.Creates() != 0 || unprotected.Load() != 0 {
				t.Errorf("%d volumes on the wrong node, %d creates without protection", n1.Creates(), unprotected.Load())
			}
			if node := h.getClaim("c").Annotations[volume.AnnSelectedNode]; node != "n2" {
				t.Errorf("selected node %q", node)
			}
			if selected != "n2" {
				h.event("Normal Provisioning", "node n2", "claim src")
			}
		})
	}
}

func TestACloneThatBindsImmediatelyIsMadeOnItsSourcesNode(t *testing.T) {
	h := newHarness(t)
	_, n2 := h.source()
	n2.Resize("local", 300*mib) // otherwise n1 would be chosen
	h.class("at-once", immediate)
	at := "at-once"
	h.claim("c", "", func(c *v1.PersistentVolumeClaim) {
		cloneOf("src")(c)
		c.Spec.StorageClassName = &at
		c.Annotations[volume.AnnStorageProvisioner] = names.Driver
		c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("150Mi")
	})
	waittest.Until(h.t, "clone is bound", h.bound("c"))
	if v := n2.Volumes()["pvc-uid-c"]; v.GetSource() == nil || v.GetSizeBytes() != 152*mib {
		t.Errorf("clone %v", v)
	}
	waittest.Until(h.t, "nothing is reserved", func() bool { return h.c.core.ledger.Reservations() == 0 })
}

func TestACloneOfWhatIsNotThereYetWaitsForIt(t *testing.T) {
	h := newHarness(t)
	_, n2 := h.node("n1", gib), h.node("n2", gib)
	h.class("carve", nil)
	h.run()
	h.claim("c", "", cloneOf("src"))
	h.claim("src", "", nil)
	h.selectNode("src", "n2")
	waittest.Until(h.t, "clone is bound", h.bound("c"))
	if n2.Volumes()["pvc-uid-c"].GetSource() == nil {
		t.Error("it is no clone")
	}
}

func TestClonesThatCannotBeAreRefusedWithTheReason(t *testing.T) {
	block := v1.PersistentVolumeBlock
	inClass := func(class string) func(*v1.PersistentVolumeClaim) {
		return func(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName = &class }
	}
	for name, test := range map[string]struct {
		class  func(*storagev1.StorageClass)
		claim  func(*v1.PersistentVolumeClaim)
		expect []string
	}{
		"a smaller one": {
			claim: func(c *v1.PersistentVolumeClaim) {
				c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("99Mi")
			},
			expect: []string{"spec.resources.requests.storage: 99Mi", "at least 100Mi, the size of claim src"}},
		"one of another mode": {
			claim:  func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block },
			expect: []string{"spec.volumeMode", "claim src", "allowed: Filesystem"}},
		"one with another file system": {
			class:  func(c *storagev1.StorageClass) { c.Parameters = map[string]string{names.ParamFSType: "xfs"} },
			claim:  inClass("other"),
			expect: []string{`parameters[csi.storage.k8s.io/fstype]: "xfs"`, `allowed: "ext4"`}},
		"one in another device class": {
			class:  func(c *storagev1.StorageClass) { c.Parameters = map[string]string{names.ParamDeviceClass: "second"} },
			claim:  inClass("other"),
			expect: []string{`parameters[carve.csi.local/device-class]: "second"`, `allowed: "local"`}},
		"one in a device class that is not there": {
			class:  func(c *storagev1.StorageClass) { c.Parameters = map[string]string{names.ParamDeviceClass: "third"} },
			claim:  inClass("other"),
			expect: []string{`"third", which node n2 does not have`}},
		"one that its class keeps from the source's node": {
			class:  onlyOn("n1"),
			claim:  inClass("other"),
			expect: []string{"claim src, which is on node n2", "StorageClass other allows"}},
		"one of a claim in another namespace": {
			claim: func(c *v1.PersistentVolumeClaim) {
				elsewhere := "elsewhere"
				c.Spec.DataSource, c.Spec.DataSourceRef.Namespace = nil, &elsewhere
			},
			expect: []string{`spec.dataSourceRef.namespace: "elsewhere"`}},
		"one of another driver's volume": {
			claim:  cloneOf("foreign"),
			expect: []string{"claim foreign, whose volume is not one of carve.csi.local"}},
		"one of a snapshot, without the snapshots' definitions": {
			claim: func(c *v1.PersistentVolumeClaim) {
				group := spec.SnapshotGroup
				c.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: &group, Kind: spec.KindSnapshot, Name: "s"}
				c.Spec.DataSourceRef = nil
			},
			expect: []string{"spec.dataSource", "VolumeSnapshot"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			_, n2 := h.source()
			n2.Resize("second", gib)
			waittest.Until(t, "the controller knows the class", func() bool {
				v, _ := h.c.core.Fleet.View("n2")
				return v.Classes["second"] != nil
			})
			h.class("other", test.class)
			h.foreignVolume()
			h.claim("c", "n2", func(c *v1.PersistentVolumeClaim) { cloneOf("src")(c); test.claim(c) })
			h.event(append([]string{"Warning ProvisioningFailed"}, test.expect...)...)
			if n2.Creates() != 1 || h.protected("src") {
				t.Errorf("%d creates, source protected: %v", n2.Creates(), h.protected("src"))
			}
		})
	}
}

func (h *harness) foreignVolume() {
	h.t.Helper()
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "foreign"}}
	pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: "example.com", VolumeHandle: "x"}
	must.Get(h.client.CoreV1().PersistentVolumes().Create(h.t.Context(), pv, metav1.CreateOptions{}))(h.t)
	other := "others"
	h.claim("foreign", "", func(c *v1.PersistentVolumeClaim) {
		c.Spec.StorageClassName, c.Spec.VolumeName, c.Status.Phase = &other, "foreign", v1.ClaimBound
	})
	waittest.Until(h.t, "the controller sees it", func() bool {
		_, err := h.c.core.VolumeLister.Get("foreign")
		return err == nil && h.c.core.Claim("uid-foreign") != nil
	})
}

func TestAClaimForAPopulatorIsLeftAlone(t *testing.T) {
	h := newHarness(t)
	_, n2 := h.source()
	h.claim("c", "n2", func(c *v1.PersistentVolumeClaim) {
		group := "example.com"
		c.Spec.DataSourceRef = &v1.TypedObjectReference{APIGroup: &group, Kind: spec.KindClaim, Name: "src"}
	})
	h.claim("d", "n2", nil)
	waittest.Until(h.t, "the next claim is bound", h.bound("d"))
	if n2.Volumes()["pvc-uid-c"] != nil {
		t.Error("a volume was made")
	}
}

func TestACloneWaitsForFreeSpaceOnItsSourcesNode(t *testing.T) {
	h := newHarness(t)
	n1, n2 := h.source()
	n2.Resize("local", 150*mib)
	h.claim("c", "n2", cloneOf("src"))
	h.event("Warning ProvisioningFailed", "node n2", "it can be on no other node: free space there")
	waittest.Until(h.t, "source is not protected while nothing is made", func() bool { return !h.protected("src") })
	n2.Resize("local", gib)
	waittest.Until(h.t, "clone is bound", h.bound("c"))
	if n1.Creates() != 0 {
		t.Error("it was tried elsewhere")
	}
}

// The source is mounted, and its class is not thin. Each attempt protects and releases the source.
func TestRefusedCloneIsRetriedWithGrowingPauses(t *testing.T) {
	h := newHarness(t)
	_, n2 := h.source()
	const attempts = 5
	var began time.Time
	var creates, writes atomic.Int32
	took := make(chan time.Duration, 1)
	n2.SetHooks(lvmdfake.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error {
		switch creates.Add(1) {
		case 1:
			began = time.Now()
		case attempts:
			took <- time.Since(began)
		}
		return lvmdfake.Error(codes.FailedPrecondition, names.ReasonVolumeInUse, "the source is mounted")
	}})
	h.react("patch", "persistentvolumeclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if patch, ok := action.(clienttesting.PatchAction); ok && patch.GetName() == "src" {
			writes.Add(1)
		}
		return false, nil, nil
	})
	h.claim("c", "n2", cloneOf("src"))
	h.event("Warning ProvisioningFailed", "stop the Pods that use the source")
	// Of pauses of 0.2, 0.4, 0.8 and 1.6 s, a late event of the source's binding may cut one short.
	if got, want := <-took, 1400*time.Millisecond; got < want {
		t.Errorf("%d attempts took %v, want at least %v", attempts, got, want)
	}
	if n := writes.Load(); n > 2*attempts {
		t.Errorf("%d writes of the source in %d attempts, want two each", n, attempts)
	}
}

func TestACopyThatTakesLongIsReportedAndWaitedFor(t *testing.T) {
	h := newHarness(t)
	_, n2 := h.source()
	var calls atomic.Int32
	n2.SetHooks(lvmdfake.Hooks{AfterCreate: func(_ context.Context, v *lvmdv1.Volume) error {
		if calls.Add(1) < 3 {
			n2.SetCopied(v.GetName(), 25*mib)
			return status.Error(codes.DeadlineExceeded, "still copying")
		}
		n2.SetCopied(v.GetName(), -1)
		return nil
	}})
	h.claim("c", "", cloneOf("src"))
	h.event("Normal Copying", "25Mi of 100Mi of claim src", "node n2")
	waittest.Until(h.t, "clone is bound", h.bound("c"))
	waittest.Until(h.t, "source is not protected any more", func() bool { return !h.protected("src") })
	if n2.Creates() != 2 {
		t.Errorf("%d volumes were made", n2.Creates())
	}
}

func TestLongClearingIsNoFailureWhileItProgresses(t *testing.T) {
	for name, progresses := range map[string]bool{"it progresses": true, "it is stuck": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			n1 := h.node("n1", gib)
			var calls atomic.Int32
			n1.SetHooks(lvmdfake.Hooks{AfterCreate: func(_ context.Context, v *lvmdv1.Volume) error {
				n := calls.Add(1)
				if n > 5 {
					n1.SetCopied(v.GetName(), -1)
					return nil
				}
				if !progresses {
					n = 0
				}
				n1.SetCopied(v.GetName(), int64(n)*10*mib)
				return status.Error(codes.DeadlineExceeded, "still clearing")
			}})
			h.class("carve", nil)
			h.run()
			h.claim("c", "n1", func(c *v1.PersistentVolumeClaim) {
				block := v1.PersistentVolumeBlock
				c.Spec.VolumeMode = &block
			})
			if progresses {
				h.event("Normal Provisioning", "20Mi of 100Mi are cleared on node n1")
			}
			waittest.Until(t, "claim is bound", h.bound("c"))
			for held := false; ; {
				select {
				case e := <-h.events.Events:
					held = held || strings.Contains(e, cluster.ReasonHeldBack)
					continue
				default:
				}
				if held == progresses {
					t.Errorf("node held back: %v", held)
				}
				return
			}
		})
	}
}

func TestAClonesNodeThatIsAwayIsWaitedFor(t *testing.T) {
	h := newHarness(t)
	_, n2 := h.source()
	h.net.Detach("n2")
	waittest.Until(h.t, "n2 is away", func() bool {
		view, _ := h.c.core.Fleet.View("n2")
		return !view.Connected
	})
	h.claim("c", "n1", cloneOf("src"))
	h.event("Normal Provisioning", "node n2")
	h.attach(n2, "n2")
	waittest.Until(h.t, "clone is bound", h.bound("c"))
}

func TestASourceIsNotProtectedForACloneThatWasLostWithItsNode(t *testing.T) {
	for name, lose := range losing {
		for when, restart := range map[string]bool{"in one run": false, "with a restart": true} {
			t.Run(name+", "+when, func(t *testing.T) {
				t.Parallel()
				h := newHarness(t)
				_, n2 := h.source()
				entered := make(chan struct{}, 8)
				n2.SetHooks(lvmdfake.Hooks{BeforeCreate: func(ctx context.Context, _ *lvmdv1.CreateVolumeRequest) error {
					entered <- struct{}{}
					<-ctx.Done()
					return ctx.Err()
				}})
				h.claim("c", "", cloneOf("src"))
				<-entered
				if restart {
					h.stop()
				}
				h.net.Detach("n2")
				if !h.protected("src") {
					t.Fatal("the source is not protected while it may be cloned")
				}
				if restart {
					h = newHarnessOn(t, h.client)
					h.run()
				}
				lose(h, "n2")
				h.event("Warning ProvisioningFailed", "node n2, which held claim src", "delete this claim")
				waittest.Until(h.t, "the source is not protected any more", func() bool { return !h.protected("src") })
				waittest.Until(h.t, "nothing is reserved", func() bool { return h.c.core.ledger.Reservations() == 0 })
			})
		}
	}
}

func TestACloneThatIsDeletedWhileItIsMadeLeavesNothing(t *testing.T) {
	h := newHarness(t)
	_, n2 := h.source()
	entered, release := make(chan struct{}, 8), make(chan struct{})
	n2.SetHooks(lvmdfake.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error {
		entered <- struct{}{}
		<-release
		return status.Error(codes.Unavailable, "the answer was lost")
	}})
	h.claim("c", "", cloneOf("src"))
	<-entered
	h.deleteClaim("c")
	waittest.Until(h.t, "the controller knows", func() bool { return h.c.core.Claim("uid-c") == nil })
	close(release)
	waittest.Until(h.t, "source is not protected any more", func() bool { return !h.protected("src") })
	if n2.Volumes()["pvc-uid-c"] != nil || h.pv("pvc-uid-c") != nil {
		t.Error("something is left")
	}
}

func TestAfterARestartASourceIsProtectedForAsLongAsItIsCloned(t *testing.T) {
	h := newHarness(t)
	_, n2 := h.source()
	entered, release := make(chan struct{}, 8), make(chan struct{})
	n2.SetHooks(lvmdfake.Hooks{BeforeCreate: func(ctx context.Context, _ *lvmdv1.CreateVolumeRequest) error {
		entered <- struct{}{}
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}})
	h.claim("c", "", cloneOf("src"))
	<-entered
	h.stop()
	if !h.protected("src") {
		t.Fatal("the source is not protected")
	}
	// An earlier process run left the finalizer on a claim without clones.
	h.claim("idle", "", func(c *v1.PersistentVolumeClaim) {
		c.Finalizers = []string{"example.com/other", provision.CloneFinalizer}
	})

	h.net.Detach("n2")
	next := newHarnessOn(t, h.client)
	next.attach(n2, "n2")
	next.run()
	<-entered // the clone continues
	waittest.Until(next.t, "the idle claim is free", func() bool { return !next.protected("idle") })
	if got := next.getClaim("idle").Finalizers; !slices.Equal(got, []string{"example.com/other"}) {
		t.Errorf("finalizers %q", got)
	}
	if !next.protected("src") {
		t.Error("the source is not protected while it is cloned")
	}
	close(release)
	waittest.Until(next.t, "clone is bound", next.bound("c"))
	waittest.Until(next.t, "source is not protected any more", func() bool { return !next.protected("src") })
}
