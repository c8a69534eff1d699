package controller

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/audit"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// csiClient is a client of the CSI service of a harness.
func (h *harness) csiClient() csi.ControllerClient {
	h.t.Helper()
	conn := must.Get(grpc.NewClient("unix:"+h.serveCSI(), grpc.WithTransportCredentials(insecure.NewCredentials())))(h.t)
	h.t.Cleanup(func() { _ = conn.Close() })
	return csi.NewControllerClient(conn)
}

func on(nodes ...string) []*csi.Topology {
	var out []*csi.Topology
	for _, node := range nodes {
		out = append(out, &csi.Topology{Segments: map[string]string{names.TopologyNode: node}})
	}
	return out
}

// volumeRequest asks for 100 MiB with a file system.
func volumeRequest(name string, change func(*csi.CreateVolumeRequest)) *csi.CreateVolumeRequest {
	r := &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: 100 * mib},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}},
	}
	if change != nil {
		change(r)
	}
	return r
}

func nodeOfVolume(v *csi.Volume) string {
	if len(v.GetAccessibleTopology()) != 1 {
		return ""
	}
	return v.GetAccessibleTopology()[0].GetSegments()[names.TopologyNode]
}

func TestCSIVolumesComeWhereTheyAreWanted(t *testing.T) {
	for name, test := range map[string]struct {
		where  *csi.TopologyRequirement
		params map[string]string
		want   string
		code   codes.Code
	}{
		"on the node with the most free space":          {want: "n2"},
		"by the policy of the parameters":               {params: map[string]string{names.ParamPlacement: "least-free"}, want: "n3"},
		"on the preferred node, though others are best": {where: &csi.TopologyRequirement{Requisite: on("n1", "n2"), Preferred: on("n1", "n2")}, want: "n1"},
		"on the best of the allowed ones":               {where: &csi.TopologyRequirement{Requisite: on("n1", "n3")}, want: "n1"},
		"elsewhere when the preferred node is full":     {where: &csi.TopologyRequirement{Requisite: on("full", "n3"), Preferred: on("full")}, want: "n3"},
		"nowhere when the only allowed one is full":     {where: &csi.TopologyRequirement{Requisite: on("full"), Preferred: on("full")}, code: codes.ResourceExhausted},
		"nowhere when the allowed one has no such class": {where: &csi.TopologyRequirement{Preferred: on("n1")},
			params: map[string]string{names.ParamDeviceClass: "other"}, code: codes.InvalidArgument},
		"nowhere when the allowed one is not known":      {where: &csi.TopologyRequirement{Preferred: on("n9")}, code: codes.Unavailable},
		"nowhere by a topology that is not ours":         {where: &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{"zone": "a"}}}}, code: codes.InvalidArgument},
		"nowhere when what is preferred is excluded":     {where: &csi.TopologyRequirement{Requisite: on("n1"), Preferred: on("n2")}, code: codes.InvalidArgument},
		"nowhere with unknown parameters":                {params: map[string]string{"x": "y"}, code: codes.InvalidArgument},
		"with the upstream provisioner's extra metadata": {params: map[string]string{paramClaimName: "c", paramClaimNamespace: "ns", paramVolumeName: "pvc-x"}, want: "n2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			nodes := map[string]*lvmdfake.Server{"n1": h.node("n1", gib), "n2": h.node("n2", 2*gib), "n3": h.node("n3", 512*mib), "full": h.node("full", 8*mib)}
			h.run()
			r, err := h.csiClient().CreateVolume(t.Context(), volumeRequest("pvc-x", func(r *csi.CreateVolumeRequest) {
				r.AccessibilityRequirements, r.Parameters = test.where, test.params
			}))
			if status.Code(err) != test.code || nodeOfVolume(r.GetVolume()) != test.want {
				t.Fatalf("on %q: %v, want %q, %s", nodeOfVolume(r.GetVolume()), err, test.want, test.code)
			}
			if test.want == "" {
				return
			}
			v := nodes[test.want].Volumes()["pvc-x"]
			if v.GetOwner().GetClusterId() != "cluster" || v.GetOwner().GetClaimUid() != "" || v.GetOwner().GetClaimName() != test.params[paramClaimName] {
				t.Errorf("owner %v", v.GetOwner())
			}
			if kind := newAuditor(h.c.core, true, audit.DefaultOrphanGrace, func(string) bool { return false }).Classify(v); kind != audit.KindForeign {
				t.Errorf("to the audit it is %s", kind)
			}
		})
	}
}

func TestALostAnswerToCSIIsAskedForOnTheSameNode(t *testing.T) {
	h := newHarness(t)
	n1, n2 := h.node("n1", 2*gib), h.node("n2", gib)
	var calls atomic.Int32
	n1.SetHooks(lvmdfake.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error {
		if calls.Add(1) == 1 {
			return status.Error(codes.Unavailable, "lost")
		}
		return nil
	}})
	h.run()
	client := h.csiClient()
	if _, err := client.CreateVolume(t.Context(), volumeRequest("v", nil)); status.Code(err) != codes.Unavailable {
		t.Fatalf("lost answer: %v", err)
	}
	n1.Resize("local", gib/2) // now n2 is the best
	waittest.Until(h.t, "the ledger knows", func() bool { free, _ := h.c.core.ledger.FreeSpace("n1", ""); return free.Available <= gib/2 })
	_, err := client.CreateVolume(t.Context(), volumeRequest("v", func(r *csi.CreateVolumeRequest) {
		r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: on("n2")}
	}))
	if status.Code(err) != codes.AlreadyExists {
		t.Errorf("elsewhere while its outcome is unknown: %v", err)
	}
	// What another node reports is not what was asked of it.
	n2.Put(&lvmdv1.Volume{Id: "cv" + strings.Repeat("z", 26), Name: "v", DeviceClass: "local"})
	waittest.Until(t, "n2 reports a volume of that name", func() bool { return len(h.c.core.Fleet.Holders("v")) == 1 })
	r, err := client.CreateVolume(t.Context(), volumeRequest("v", nil))
	if err != nil || nodeOfVolume(r.GetVolume()) != "n1" || n2.Creates() != 0 {
		t.Errorf("again: %v, %v", r, err)
	}
}

// A node that is gone holds nothing, and a request that was in flight there is no reason to
// make the volume nowhere.
func TestALostAnswerToCSIOfANodeThatIsGoneHoldsNothingUp(t *testing.T) {
	h := newHarness(t)
	n1, n2 := h.node("n1", 2*gib), h.node("n2", gib)
	n1.SetHooks(lvmdfake.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error {
		return status.Error(codes.Unavailable, "lost")
	}})
	h.run()
	client := h.csiClient()
	if _, err := client.CreateVolume(t.Context(), volumeRequest("v", nil)); status.Code(err) != codes.Unavailable {
		t.Fatalf("lost answer: %v", err)
	}
	h.cutOff("n1")
	if _, err := client.CreateVolume(t.Context(), volumeRequest("v", nil)); status.Code(err) != codes.Unavailable || n2.Creates() != 0 {
		t.Fatalf("while the node may come back: %v, %d creates elsewhere", err, n2.Creates())
	}
	must.Succeed(t, h.client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}))
	waittest.Until(t, "the volume is made elsewhere", func() bool {
		r, err := client.CreateVolume(t.Context(), volumeRequest("v", nil))
		return err == nil && nodeOfVolume(r.GetVolume()) == "n2"
	})
}

func TestCreatesThatFailOverCSIHoldANodeBack(t *testing.T) {
	h := newHarness(t, backoff(time.Hour))
	n1, n2 := h.node("n1", 2*gib), h.node("n2", gib)
	failing := failCreates(n1, codes.Internal, names.ReasonCommandFailed)
	h.run()
	client := h.csiClient()
	prefersN1 := func(r *csi.CreateVolumeRequest) {
		r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: on("n1", "n2"), Preferred: on("n1", "n2")}
	}
	for range cluster.FailuresToHold {
		if _, err := client.CreateVolume(t.Context(), volumeRequest("v", prefersN1)); status.Code(err) != codes.Internal {
			t.Fatalf("a command that fails: %v", err)
		}
	}
	if until := h.c.core.available.HeldUntil("n1", "local"); until.IsZero() {
		t.Fatal("n1 is not held back")
	}
	capacity := must.Get(client.GetCapacity(t.Context(), &csi.GetCapacityRequest{AccessibleTopology: on("n1")[0]}))(t)
	if capacity.GetAvailableCapacity() != 0 {
		t.Errorf("n1 offers %d bytes", capacity.GetAvailableCapacity())
	}
	// Now it is the last that is tried, and its failures with one volume count against one node.
	var asked atomic.Int32
	n2.SetHooks(lvmdfake.Hooks{BeforeCreate: func(context.Context, *lvmdv1.CreateVolumeRequest) error {
		asked.Add(1)
		return lvmdfake.Error(codes.Internal, names.ReasonCommandFailed, "lvcreate failed")
	}})
	for range 2 * cluster.FailuresToHold {
		if _, err := client.CreateVolume(t.Context(), volumeRequest("v", prefersN1)); status.Code(err) != codes.Internal {
			t.Fatalf("a command that fails: %v", err)
		}
	}
	if until := h.c.core.available.HeldUntil("n2", "local"); !until.IsZero() || asked.Load() != 2*cluster.FailuresToHold {
		t.Errorf("n2 is held back until %v for a volume that no node can make, after %d creates", until, asked.Load())
	}
	// Where nothing else is allowed, it is asked, and a success ends it.
	failing.Store(false)
	must.Get(client.CreateVolume(t.Context(), volumeRequest("w", func(r *csi.CreateVolumeRequest) {
		r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: on("n1"), Preferred: on("n1")}
	})))(t)
	if until := h.c.core.available.HeldUntil("n1", "local"); !until.IsZero() {
		t.Error("n1 is still held back after a success")
	}
}

func TestWhatAnAbsentNodeMayHoldIsNotCalledGone(t *testing.T) {
	h := newHarness(t)
	h.node("n1", gib)
	h.node("never", 0) // without an agent
	h.run()
	client := h.csiClient()
	unknown := "cv" + strings.Repeat("a", 26)
	if _, err := client.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: unknown}); err != nil {
		t.Errorf("delete what no node has: %v", err)
	}
	late := h.node("late", 0)
	node := must.Get(h.client.CoreV1().Nodes().Get(t.Context(), "late", metav1.GetOptions{}))(t)
	node = node.DeepCopy()
	node.Annotations = map[string]string{cluster.NodeIDAnnotation: `{"carve.csi.local":"late","example.com":"x"}`}
	must.Get(h.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}))(t)
	waittest.Until(h.t, "the controller sees it", func() bool { return slices.Equal(h.c.core.AbsentNodes(), []string{"late"}) })
	if _, err := client.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: unknown}); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "late") {
		t.Errorf("delete what an absent node may have: %v", err)
	}
	if _, err := client.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("list snapshots without an absent node's: %v", err)
	}
	h.attach(late, "late")
	if _, err := client.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: unknown}); err != nil {
		t.Errorf("delete after it came: %v", err)
	}
	// A node that has been gone for long holds nothing.
	gone := &csi.DeleteSnapshotRequest{SnapshotId: "gone/cs" + strings.Repeat("a", 26)}
	if _, err := client.DeleteSnapshot(t.Context(), gone); status.Code(err) != codes.Unavailable {
		t.Errorf("delete a snapshot of a node that is just gone: %v", err)
	}
	waittest.Until(t, "a snapshot of a node that is lost can be deleted", func() bool {
		_, err := client.DeleteSnapshot(t.Context(), gone)
		return err == nil
	})
	if _, err := client.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: "never/cs" + strings.Repeat("a", 26)}); status.Code(err) != codes.Unavailable {
		t.Errorf("delete a snapshot of a node that is not connected: %v", err)
	}
	// Nor does one that is out of service.
	h.cutOff("late")
	h.c.core.Fleet.Forget("late")
	h.taint("late", v1.TaintNodeOutOfService)
	waittest.Until(h.t, "the controller sees it", func() bool { return len(h.c.core.AbsentNodes()) == 0 })
	if _, err := client.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: unknown}); err != nil {
		t.Errorf("delete a volume of a node that is out of service: %v", err)
	}
	if _, err := client.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: "late/cs" + strings.Repeat("a", 26)}); err != nil {
		t.Errorf("delete a snapshot of a node that is out of service: %v", err)
	}
}

func TestCSIListsEverythingOnceInPages(t *testing.T) {
	h := newHarness(t)
	for _, name := range []string{"a", "b", "c", "d"} {
		h.thinNode(name, gib)
	}
	h.run()
	client := h.csiClient()
	var volumes, snapshots []string
	for i, node := range []string{"a", "a", "a", "c", "c", "d"} {
		name := string(rune('p' + i))
		v := must.Get(client.CreateVolume(t.Context(), volumeRequest(name, func(r *csi.CreateVolumeRequest) {
			r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: on(node)}
		})))(t)
		s := must.Get(client.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "snapshot-" + name, SourceVolumeId: v.GetVolume().GetVolumeId()}))(t)
		volumes, snapshots = append(volumes, v.GetVolume().GetVolumeId()), append(snapshots, s.GetSnapshot().GetSnapshotId())
	}
	slices.Sort(volumes)
	slices.Sort(snapshots)
	waittest.Until(h.t, "the nodes' reports are in", func() bool {
		r, err := client.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
		return err == nil && len(r.GetEntries()) == len(volumes)
	})
	for size := range int32(8) {
		var gotVolumes, gotSnapshots []string
		for token, more := "", true; more; {
			r, err := client.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: size, StartingToken: token})
			if err != nil || size > 0 && len(r.GetEntries()) > int(size) {
				t.Fatalf("pages of %d: %v, %v", size, r, err)
			}
			for _, e := range r.GetEntries() {
				gotVolumes = append(gotVolumes, e.GetVolume().GetVolumeId())
			}
			token, more = r.GetNextToken(), r.GetNextToken() != ""
		}
		for token, more := "", true; more; {
			r, err := client.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{MaxEntries: size, StartingToken: token})
			if err != nil || size > 0 && len(r.GetEntries()) > int(size) {
				t.Fatalf("pages of %d: %v, %v", size, r, err)
			}
			for _, e := range r.GetEntries() {
				gotSnapshots = append(gotSnapshots, e.GetSnapshot().GetSnapshotId())
			}
			token, more = r.GetNextToken(), r.GetNextToken() != ""
		}
		if !slices.Equal(gotVolumes, volumes) || !slices.Equal(gotSnapshots, snapshots) {
			t.Errorf("pages of %d: %q of %q, %q of %q", size, gotVolumes, volumes, gotSnapshots, snapshots)
		}
	}
	free, err := client.GetCapacity(t.Context(), &csi.GetCapacityRequest{AccessibleTopology: on("b")[0]})
	if err != nil || free.GetAvailableCapacity() != gib || free.GetMaximumVolumeSize().GetValue() != gib {
		t.Errorf("free space on b: %v, %v", free, err)
	}
}

func TestCSIClonesAndRestoresComeToTheirSourcesNode(t *testing.T) {
	h := newHarness(t)
	_, n2 := h.thinNode("n1", 4*gib), h.thinNode("n2", gib)
	h.run()
	client := h.csiClient()
	source := must.Get(client.CreateVolume(t.Context(), volumeRequest("source", func(r *csi.CreateVolumeRequest) {
		r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: on("n2")}
	})))(t)
	id := source.GetVolume().GetVolumeId()
	snapshot := must.Get(client.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id}))(t)
	for name, from := range map[string]*csi.VolumeContentSource{
		"clone":   {Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}},
		"restore": {Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snapshot.GetSnapshot().GetSnapshotId()}}},
	} {
		r, err := client.CreateVolume(t.Context(), volumeRequest(name, func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = from }))
		if err != nil || nodeOfVolume(r.GetVolume()) != "n2" || n2.Volumes()[name].GetSource() == nil {
			t.Errorf("%s: %v, %v", name, r, err)
		}
		_, err = client.CreateVolume(t.Context(), volumeRequest(name+"-elsewhere", func(r *csi.CreateVolumeRequest) {
			r.VolumeContentSource, r.AccessibilityRequirements = from, &csi.TopologyRequirement{Requisite: on("n1")}
		}))
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%s elsewhere: %v", name, err)
		}
	}
	// The source may go first.
	if _, err := client.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
		t.Error(err)
	}
	if _, err := client.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: snapshot.GetSnapshot().GetSnapshotId()}); err != nil {
		t.Error(err)
	}
}
