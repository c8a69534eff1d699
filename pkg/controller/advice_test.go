package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/provision"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestEveryRefusalOfANodeSaysWhereWhatAndWhatToDo(t *testing.T) {
	for name, test := range map[string]struct {
		code   codes.Code
		reason string
		expect []string
	}{
		"no space": {codes.ResourceExhausted, names.ReasonNoSpace, []string{"node n1: the reason", "the scheduler is asked for another node"}},
		"a class that is gone": {codes.FailedPrecondition, names.ReasonClassNotFound,
			[]string{"node n1: the reason", "the scheduler is asked for another node"}},
		"a missing device": {codes.Unavailable, names.ReasonDeviceMissing,
			[]string{"node n1: the reason", "look at the disks of its volume group", "the scheduler is asked for another node"}},
		"a volume group that does not respond": {codes.Unavailable, names.ReasonNotResponding,
			[]string{"node n1: the reason", "LVM does not answer there", "the scheduler is asked for another node"}},
		"a command that fails again and again": {codes.Internal, names.ReasonCommandFailed,
			[]string{"node n1: the reason", "the log of lvmd there", "the scheduler is asked for another node"}},
		"settings of a file system that mkfs refuses": {codes.InvalidArgument, names.ReasonFormatRefused,
			[]string{"node n1: the reason", "there is no other node to try", "make StorageClass carve again with other parameters"}},
		"a command that hangs": {codes.DeadlineExceeded, names.ReasonCommandTimedOut,
			[]string{"node n1: the reason", "LVM does not answer there", "asking it again"}},
		"a size that cannot be made": {codes.OutOfRange, names.ReasonSizeOutOfRange, []string{"node n1: the reason", "asking it again"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			h.node("n1", gib).SetHooks(lvmdfake.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error {
				return lvmdfake.Error(test.code, test.reason, "the reason")
			}})
			h.class("carve", nil)
			h.run()
			h.claim("c", "n1", nil)
			h.event(append([]string{"Warning ProvisioningFailed"}, test.expect...)...)
		})
	}
}

func TestAVolumeThatCannotBeDeletedSaysWhereWhatAndWhatToDo(t *testing.T) {
	for name, test := range map[string]struct {
		code   codes.Code
		reason string
		expect []string
	}{
		"it is in use":     {codes.FailedPrecondition, names.ReasonVolumeInUse, []string{"node n1: the reason", "when nothing on the node uses it any more"}},
		"a missing device": {codes.Unavailable, names.ReasonDeviceMissing, []string{"node n1: the reason", "look at the disks of its volume group", "trying on"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			node := h.node("n1", gib)
			h.class("carve", nil)
			h.run()
			h.boundVolume("c", "n1")
			node.SetHooks(lvmdfake.Hooks{BeforeDelete: func(context.Context, *lvmdv1.DeleteVolumeRequest) error {
				return lvmdfake.Error(test.code, test.reason, "the reason")
			}})
			h.deleteClaim("c")
			h.released("pvc-uid-c")
			h.event(append([]string{"Warning VolumeFailedDelete"}, test.expect...)...)
		})
	}
	t.Run("its node is away", func(t *testing.T) {
		h := newHarness(t)
		h.node("n1", gib)
		h.class("carve", nil)
		h.run()
		h.boundVolume("c", "n1")
		h.net.Detach("n1")
		h.deleteClaim("c")
		h.released("pvc-uid-c")
		h.event("Warning VolumeFailedDelete", "n1 is not connected", "DaemonSet carve-node", "delete its Node object")
	})
}

func (h *harness) resizeEvent(claim string, parts ...string) {
	h.t.Helper()
	waittest.Until(h.t, "an Event says why "+claim+" does not grow", func() bool {
		events := must.Get(h.client.CoreV1().Events("").List(context.Background(), metav1.ListOptions{}))(h.t)
		for _, e := range events.Items {
			found := e.Reason == "VolumeResizeFailed" && e.InvolvedObject.Name == claim && e.Type == v1.EventTypeWarning
			for _, part := range parts {
				found = found && strings.Contains(e.Message, part)
			}
			if found {
				return true
			}
		}
		return false
	})
}

func TestAClaimThatCannotGrowSaysWhereWhatAndWhatToDo(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.node("n2", gib)
	h.class("carve", expandable)
	h.run()
	h.boundVolume("large", "n1")
	h.boundVolume("away", "n2")
	h.grow("large", "5Gi")
	h.resizeEvent("large", "node n1: ", "to 5Gi", "lower the request again, or extend its volume group")
	h.net.Detach("n2")
	waittest.Until(h.t, "n2 is away", func() bool { v, _ := h.c.core.Fleet.View("n2"); return !v.Connected })
	h.grow("away", "200Mi")
	h.resizeEvent("away", "node n2 is not connected", "DaemonSet carve-node")
}

func TestImmediateBindingSaysWhyItPassesOverEachNode(t *testing.T) {
	h := newHarness(t)
	for _, node := range []string{"small", "cordoned", "elsewhere", "away", "out"} {
		h.node(node, gib)
	}
	h.taint("out", v1.TaintNodeOutOfService)
	cordoned := must.Get(h.client.CoreV1().Nodes().Get(t.Context(), "cordoned", metav1.GetOptions{}))(t)
	cordoned = cordoned.DeepCopy()
	cordoned.Spec.Unschedulable = true
	must.Get(h.client.CoreV1().Nodes().Update(t.Context(), cordoned, metav1.UpdateOptions{}))(t)
	h.net.Detach("away")
	waittest.Until(h.t, "away is away", func() bool { v, _ := h.c.core.Fleet.View("away"); return !v.Connected })
	h.class("carve", func(c *storagev1.StorageClass) {
		immediate(c)
		c.AllowedTopologies = []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{
			{Key: "zone", Values: []string{"z-small", "z-cordoned", "z-away", "z-out"}}}}}
	})
	h.run()
	h.claim("c", "", func(c *v1.PersistentVolumeClaim) {
		asked(c)
		c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("100G")
	})
	h.event("Warning ProvisioningFailed", "StorageClass carve", "has 93.13Gi free", "1 are not connected", "1 are excluded by allowedTopologies",
		"2 are cordoned or out of service", "1 are too full (the largest volume would be 1Gi)")
}

func skewedBy(skew *atomic.Int64) harnessOption {
	return func(c *Controller) {
		c.core.Now = func() time.Time { return time.Now().Add(time.Duration(skew.Load())) }
	}
}

func (h *harness) touch(name string) {
	h.t.Helper()
	must.Get(h.client.CoreV1().PersistentVolumeClaims("default").Patch(context.Background(), name, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"labels":{"touched":"%d"}}}`, time.Now().UnixNano()), metav1.PatchOptions{}))(h.t)
}

func TestAClaimThatNoNodeCanEverTakeHasAnEventThatSaysWhy(t *testing.T) {
	inClass := func(class string) func(*storagev1.StorageClass) {
		return func(c *storagev1.StorageClass) { c.Parameters = map[string]string{names.ParamDeviceClass: class} }
	}
	for name, test := range map[string]struct {
		nodes  int64 // bytes of the only node, 0 for none
		class  func(*storagev1.StorageClass)
		size   string
		expect []string
	}{
		"a device class that no node has": {gib, inClass("fast"), "1Mi",
			[]string{"StorageClass carve: parameters[carve.csi.local/device-class]", `"fast", which no node has`, `allowed: ["local"]`}},
		"the same, bound at once": {gib, func(c *storagev1.StorageClass) { immediate(c); inClass("fast")(c) }, "1Mi",
			[]string{"StorageClass carve: parameters[carve.csi.local/device-class]", `"fast", which no node has`, `allowed: ["local"]`}},
		"more than the largest node": {gib, nil, "2Gi",
			[]string{"spec.resources.requests.storage", "2Gi", "at most 1Gi"}},
		"no node at all": {0, nil, "1Mi", []string{"no node is connected", "DaemonSet carve-node"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var skew atomic.Int64
			h := newHarness(t, skewedBy(&skew))
			h.node("n1", test.nodes)
			h.class("carve", test.class)
			h.run()
			h.leader()
			h.claim("c", "", func(c *v1.PersistentVolumeClaim) {
				asked(c)
				c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse(test.size)
			})
			waittest.Until(h.t, "the claim is seen", func() bool { return h.leader().provisioner.Busy("uid-c") })
			skew.Store(int64(2 * provision.WarnAfter))
			h.touch("c")
			h.event(append([]string{"Warning ProvisioningFailed"}, test.expect...)...)
			if h.volumes() != 0 {
				t.Error("something was made")
			}
		})
	}
}

func TestAStorageClassWhoseDeviceClassNoNodeHasPublishesNothing(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.class("fast", func(c *storagev1.StorageClass) { c.Parameters = map[string]string{names.ParamDeviceClass: "fast"} })
	h.class("carve", nil)
	h.run()
	waittest.Until(h.t, "the other class is published", h.capacityIs("n1", gib))
	if n := h.capacities(); n != 1 {
		t.Errorf("%d objects, want 1", n)
	}
}

func TestAPersistentVolumeThatCannotBeMadeIsReportedUnlessTheNextAttemptSucceeds(t *testing.T) {
	for name, test := range map[string]struct {
		failures int32
		warned   bool
	}{
		"once":                     {1, false},
		"a second time, and again": {3, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.node("n1", gib)
			h.class("carve", nil)
			var attempts atomic.Int32
			h.react("create", "persistentvolumes", func(k8stesting.Action) (bool, runtime.Object, error) {
				if attempts.Add(1) <= test.failures {
					return true, nil, apierrors.NewInternalError(errors.New("the database is away"))
				}
				return false, nil, nil
			})
			h.run()
			h.claim("c", "n1", nil)
			waittest.Until(h.t, "claim is bound", h.bound("c"))
			warnings := h.warnings()
			if warned := len(warnings) > 0; warned != test.warned {
				t.Errorf("want a warning: %v, got %q", test.warned, warnings)
			}
			for _, w := range warnings {
				if !strings.Contains(w, "volume was made on node n1") || !strings.Contains(w, "the database is away") {
					t.Errorf("the warning is %q", w)
				}
			}
		})
	}
}
