package controller

import (
	"slices"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	fakesnapshots "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/utils"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// withSnapshots gives the controller a cluster with snapshots, whose objects the test writes:
// the library runs in snapshot_apiserver_test.go.
func withSnapshots(client *fakesnapshots.Clientset) harnessOption {
	return func(c *Controller) { c.o.Snapshots = client }
}

func restoreOf(snapshot string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		group := spec.SnapshotGroup
		c.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: &group, Kind: spec.KindSnapshot, Name: snapshot}
		c.Spec.DataSourceRef = &v1.TypedObjectReference{APIGroup: &group, Kind: spec.KindSnapshot, Name: snapshot}
	}
}

func (h *harness) thinNode(name string, bytes int64) *lvmdfake.Server {
	h.t.Helper()
	h.node(name, 0)
	s := lvmdfake.New(name, lvmdfake.Class{Name: "thin", Default: true, Bytes: bytes, Thin: true})
	h.attach(s, name)
	return s
}

func noContents() cache.Indexer { return cache.NewIndexer(cache.MetaNamespaceKeyFunc, byHandle()) }

func (h *harness) waitNamed(volume string) {
	h.t.Helper()
	waittest.Until(h.t, "the PersistentVolume is seen", func() bool { _, known := h.c.core.NodeOfVolume(volume); return known })
}

// takeSnapshot acts as the library does, and returns the handle.
func (h *harness) takeSnapshot(name, volume string) (handle string, err error) {
	h.t.Helper()
	h.waitNamed(volume)
	_, handle, at, size, ready, err := h.c.snapshotter(h.t.Context(), noContents()).CreateSnapshot(h.t.Context(), "snapshot-uid-"+name, volume, map[string]string{
		utils.PrefixedVolumeSnapshotNameKey: name, utils.PrefixedVolumeSnapshotNamespaceKey: "default"}, nil)
	if err == nil && (at.IsZero() || size != 100*mib || !ready) {
		h.t.Errorf("snapshot of %d bytes at %s, ready: %v", size, at, ready)
	}
	return handle, err
}

// volumeSnapshot makes a VolumeSnapshot and its content as both controllers leave them.
func volumeSnapshot(t *testing.T, client *fakesnapshots.Clientset, name, driver, handle string) {
	t.Helper()
	mode, ready, content, size := v1.PersistentVolumeFilesystem, true, "content-"+name, resource.MustParse("100Mi")
	must.Get(client.SnapshotV1().VolumeSnapshotContents().Create(t.Context(), &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: content},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			Driver: driver, SourceVolumeMode: &mode,
			VolumeSnapshotRef: v1.ObjectReference{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		},
		Status: &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: &handle},
	}, metav1.CreateOptions{}))(t)
	must.Get(client.SnapshotV1().VolumeSnapshots("default").Create(t.Context(), &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)},
		Status:     &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: &content, ReadyToUse: &ready, RestoreSize: &size},
	}, metav1.CreateOptions{}))(t)
}

func TestASnapshotIsTakenOnItsVolumesNodeAndRestoredThere(t *testing.T) {
	client := fakesnapshots.NewSimpleClientset() //nolint:staticcheck // there is no other
	h := newHarness(t, withSnapshots(client))
	h.thinNode("n1", 4*gib)
	n2 := h.thinNode("n2", gib)
	h.class("carve", nil)
	h.run()
	h.claim("src", "n2", nil)
	waittest.Until(h.t, "source is bound", h.bound("src"))
	handle, err := h.takeSnapshot("s", n2.Volumes()["pvc-uid-src"].GetId())
	snapshot := n2.Snapshots()["snapshot-uid-s"]
	if err != nil || handle != "n2/"+snapshot.GetId() {
		t.Fatalf("handle %q of %v: %v", handle, n2.Snapshots(), err)
	}
	if o := snapshot.GetOwner(); o.GetClusterId() != "cluster" || o.GetClaimNamespace() != "default" || o.GetClaimName() != "s" {
		t.Errorf("owner %v", o)
	}
	h.claim("c", "n1", func(c *v1.PersistentVolumeClaim) { // before the VolumeSnapshot exists
		restoreOf("s")(c)
		c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("200Mi")
	})
	volumeSnapshot(t, client, "s", names.Driver, handle)
	waittest.Until(h.t, "restore is bound", h.bound("c"))
	if v := n2.Volumes()["pvc-uid-c"]; v.GetSource().GetSnapshotId() != snapshot.GetId() || v.GetSizeBytes() != 200*mib {
		t.Errorf("restored %v", v)
	}
	library := h.c.snapshotter(t.Context(), noContents())
	if ready, at, size, _, err := library.GetSnapshotStatus(t.Context(), handle, nil); !ready || at.IsZero() || size != 100*mib || err != nil {
		t.Errorf("status: %v, %s, %d, %v", ready, at, size, err)
	}
	for range 2 {
		if err := library.DeleteSnapshot(t.Context(), handle, nil); err != nil || len(n2.Snapshots()) != 0 {
			t.Errorf("delete: %v, %v are left", err, n2.Snapshots())
		}
	}
	if _, _, _, _, err := library.GetSnapshotStatus(t.Context(), handle, nil); status.Code(err) != codes.NotFound {
		t.Errorf("status of what is gone: %v", err)
	}
	_, _, _, _, _, err = library.CreateSnapshot(t.Context(), "x", "y", map[string]string{"speed": "high"}, nil)
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "parameters[speed]") {
		t.Errorf("with a parameter: %v", err)
	}
}

// A node that is away may return with the snapshot.
func TestASnapshotIsGivenUpOnlyWithItsNode(t *testing.T) {
	for name, lose := range losing {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			n1 := h.thinNode("n1", gib)
			h.class("carve", nil)
			h.run()
			h.boundVolume("c", "n1")
			volume := n1.Volumes()["pvc-uid-c"].GetId()
			handle := must.Get(h.takeSnapshot("s", volume))(t)
			library := h.c.snapshotter(t.Context(), noContents())
			answers := func() []codes.Code {
				_, creation := h.takeSnapshot("other", volume)
				_, _, _, _, look := library.GetSnapshotStatus(t.Context(), handle, nil)
				return []codes.Code{status.Code(creation), status.Code(look), status.Code(library.DeleteSnapshot(t.Context(), handle, nil))}
			}
			h.cutOff("n1")
			if got := answers(); !slices.Equal(got, []codes.Code{codes.Unavailable, codes.Unavailable, codes.Unavailable}) {
				t.Errorf("creation, status and deletion on a node that is away: %v", got)
			}
			lose(h, "n1")
			waittest.Until(t, "the snapshot is given up", func() bool {
				return slices.Equal(answers(), []codes.Code{codes.NotFound, codes.Unavailable, codes.OK})
			})
		})
	}
}

func TestAVolumeWithoutSnapshotsSaysSo(t *testing.T) {
	h := newHarness(t)
	_, n2 := h.source()
	_, err := h.takeSnapshot("s", n2.Volumes()["pvc-uid-src"].GetId())
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "node n2: only thin volumes have snapshots") {
		t.Errorf("snapshot of a thick volume: %v", err)
	}
}

func TestRestoresThatCannotBeAreRefusedWithTheReason(t *testing.T) {
	block := v1.PersistentVolumeBlock
	for name, test := range map[string]struct {
		class  func(*storagev1.StorageClass)
		driver string
		claim  func(*v1.PersistentVolumeClaim)
		expect []string
	}{
		"a smaller one": {
			claim: func(c *v1.PersistentVolumeClaim) {
				c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("99Mi")
			},
			expect: []string{"spec.resources.requests.storage: 99Mi", "at least 100Mi, the size of VolumeSnapshot s"}},
		"one of another mode": {
			claim:  func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block },
			expect: []string{"spec.volumeMode: Block", "VolumeSnapshot s", "allowed: Filesystem"}},
		"one with another file system": {
			class:  func(c *storagev1.StorageClass) { c.Parameters = map[string]string{names.ParamFSType: "xfs"} },
			expect: []string{"another file system"}},
		"one of another driver's snapshot": {
			driver: "example.com",
			expect: []string{"VolumeSnapshot s, which is not one of carve.csi.local"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := fakesnapshots.NewSimpleClientset() //nolint:staticcheck // there is no other
			h := newHarness(t, withSnapshots(client))
			n1 := h.thinNode("n1", gib)
			h.class("carve", nil)
			h.class("other", test.class)
			h.run()
			h.claim("src", "n1", nil)
			waittest.Until(h.t, "source is bound", h.bound("src"))
			driver := names.Driver
			if test.driver != "" {
				driver = test.driver
			}
			handle := must.Get(h.takeSnapshot("s", n1.Volumes()["pvc-uid-src"].GetId()))(t)
			volumeSnapshot(t, client, "s", driver, handle)
			h.claim("c", "", func(c *v1.PersistentVolumeClaim) {
				other := "other"
				c.Spec.StorageClassName = &other
				restoreOf("s")(c)
				if test.claim != nil {
					test.claim(c)
				}
			})
			h.event(append([]string{"Warning ProvisioningFailed"}, test.expect...)...)
			if n1.Creates() != 1 {
				t.Errorf("%d creates", n1.Creates())
			}
		})
	}
}
