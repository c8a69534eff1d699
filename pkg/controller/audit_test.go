package controller

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/audit"
	"github.com/carve-csi/carve/pkg/controller/provision"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (h *harness) stray(node *lvmdfake.Server, nodeName, uid, cluster string) {
	h.t.Helper()
	must.Get(node.CreateVolume(h.t.Context(), &lvmdv1.CreateVolumeRequest{
		Name: "pvc-" + uid, RequiredBytes: 100 * mib, Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM,
		Owner: &lvmdv1.Owner{ClusterId: cluster, ClaimNamespace: "default", ClaimName: "gone", ClaimUid: uid},
	}))(h.t)
	waittest.Until(h.t, "volume is reported", func() bool {
		v, _ := h.c.core.Fleet.View(nodeName)
		return v.ByName["pvc-"+uid] != nil
	})
}

func (h *harness) audit(remove bool) {
	h.t.Helper()
	h.leader()
	a := newAuditor(h.c.core, remove, audit.DefaultOrphanGrace, h.leader().provisioner.Busy)
	a.Grace = 0
	a.Pass(h.t.Context())
}

func TestAReplicaThatDoesNotLeadAnyMoreCountsNoVolumes(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.run()
	h.leader()
	h.stray(node, "n1", "orphan", "cluster")
	metrics := audit.NewMetrics(prometheus.NewRegistry())
	a := audit.New(h.c.core.Cluster, audit.Options{
		Interval: time.Millisecond, Since: h.c.core.Now(), Busy: func(string) bool { return false }, Metrics: metrics,
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	waittest.Until(t, "the orphan counts", func() bool { return testutil.ToFloat64(metrics.Audited.WithLabelValues(audit.KindOrphan)) == 1 })
	stop()
	must.Succeed(t, <-ended)
	if n := testutil.CollectAndCount(metrics.Audited) + testutil.CollectAndCount(metrics.Missing); n != 0 {
		t.Errorf("%d series are left, want none", n)
	}
}

func TestOrphansAreOnlyReportedUnlessRemovalWasAskedFor(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.boundVolume("c", "n1")
	h.stray(node, "n1", "orphan", "cluster")
	h.audit(false)
	if len(node.Volumes()) != 2 {
		t.Fatal("an orphan was removed unasked")
	}
	h.audit(true)
	if v := node.Volumes(); len(v) != 1 || v["pvc-uid-c"] == nil {
		t.Errorf("left on the node: %v", v)
	}
}

func TestTheAuditSparesWhatIsNotCertainlyAnOrphan(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.stray(node, "n1", "foreign", "another-cluster")
	h.stray(node, "n1", "unowned", "")
	h.stray(node, "n1", "young", "cluster")
	h.audit(true)
	if v := node.Volumes(); len(v) != 2 {
		t.Errorf("without a grace period: %d volumes left, want the 2 that are not ours", len(v))
	}
	h.stray(node, "n1", "young", "cluster")
	h.leader()
	newAuditor(h.c.core, true, audit.DefaultOrphanGrace, h.leader().provisioner.Busy).Pass(t.Context())
	if node.Volumes()["pvc-young"] == nil {
		t.Error("a volume that was just made was removed")
	}
	// The API server has it, the cache does not.
	pv := provision.NewPersistentVolume(h.claim("x", "", nil), mustClass(t, h), "n1", node.Volumes()["pvc-young"], "x")
	pv.Name, pv.Spec.CSI.Driver = "adopted", "hidden.from.the.index"
	must.Get(h.client.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}))(t)
	h.audit(true)
	if node.Volumes()["pvc-young"] == nil {
		t.Error("a volume was removed that a PersistentVolume names")
	}
}

func TestAVolumeThatAPodDefinesItselfIsNoOrphan(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	name := "csi-" + strings.Repeat("0", 64)
	if _, err := node.CreateVolume(t.Context(), &lvmdv1.CreateVolumeRequest{
		Name: name, RequiredBytes: 100 * mib, Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM,
		// A Pod as owner overrides the rest.
		Owner: &lvmdv1.Owner{ClusterId: "cluster", ClaimUid: name, PodNamespace: "default", PodName: "web", PodUid: "uid"},
	}); err != nil {
		t.Fatal(err)
	}
	waittest.Until(h.t, "it is reported", func() bool { v, _ := h.c.core.Fleet.View("n1"); return v.ByName[name] != nil })
	h.audit(true)
	if node.Volumes()[name] == nil {
		t.Error("it was removed")
	}
	vol := node.Volumes()[name]
	if got := newAuditor(h.c.core, true, 0, h.leader().provisioner.Busy).Classify(vol); got != audit.KindInline {
		t.Errorf("its kind is %q", got)
	}
}

func TestAnOrphanInUseIsRefusedByItsNode(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	h.stray(node, "n1", "orphan", "cluster")
	node.SetHooks(lvmdfake.Hooks{BeforeDelete: func(context.Context, *lvmdv1.DeleteVolumeRequest) error {
		return lvmdfake.Error(codes.FailedPrecondition, names.ReasonVolumeInUse, "the volume is mounted")
	}})
	h.audit(true)
	if len(node.Volumes()) != 1 {
		t.Error("it was removed")
	}
}

func TestAVolumeThatIsGoneFromItsNodeIsAnnouncedAndNotMadeAgain(t *testing.T) {
	h := newHarness(t)
	node := h.node("n1", gib)
	h.class("carve", nil)
	h.run()
	pv := h.boundVolume("c", "n1").DeepCopy()
	pv.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
	must.Get(h.client.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{}))(t)
	must.Get(node.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Name: pv.Name}))(t)
	waittest.Until(h.t, "the node reports it gone", func() bool { v, _ := h.c.core.Fleet.View("n1"); return len(v.Volumes) == 0 })
	h.audit(true)
	h.event("Warning VolumeMissing", "not on node n1")
	h.event("Warning VolumeMissing", "Delete the claim")
	if h.getClaim("c").Status.Phase != v1.ClaimBound || len(node.Volumes()) != 0 {
		t.Error("something was done about it")
	}
}

func TestTheAuditIsRepeated(t *testing.T) {
	h := newHarness(t)
	metrics := audit.NewMetrics(prometheus.NewRegistry())
	auditor := audit.New(h.c.core.Cluster, audit.Options{Grace: time.Hour, Interval: time.Millisecond, Busy: func(string) bool { return false }, Metrics: metrics})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- auditor.Run(ctx) }()
	foreign := metrics.Audited.WithLabelValues(audit.KindForeign)
	for range 3 {
		foreign.Set(1)
		waittest.Until(t, "a pass counts none", func() bool { return testutil.ToFloat64(foreign) == 0 })
	}
	stop()
	must.Succeed(t, <-ended)
}
