//go:build kernel

package conformance_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

const mib = 1 << 20

// mute is an lvmd that does what it is asked for and, once, does not say so.
type mute struct {
	lvmdv1.LVMDServer

	mu    sync.Mutex
	next  string // the call whose reply is dropped
	done  chan struct{}
	calls map[string]int
}

// drop has the reply to the next such call dropped. The channel is closed when the call
// was done, and waits for its connection to end.
func (m *mute) drop(call string) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next, m.done, m.calls = call, make(chan struct{}), map[string]int{}
	return m.done
}

// count is how often a call was made since drop.
func (m *mute) count(call string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[call]
}

// after is called with a call that was done without an error.
func (m *mute) after(ctx context.Context, call string) error {
	m.mu.Lock()
	m.calls[call]++
	drops := m.next == call
	if drops {
		m.next = ""
		close(m.done)
	}
	m.mu.Unlock()
	if !drops {
		return nil
	}
	<-ctx.Done() // the connection is gone, and the reply with it
	return ctx.Err()
}

func (m *mute) CreateVolume(ctx context.Context, r *lvmdv1.CreateVolumeRequest) (*lvmdv1.CreateVolumeResponse, error) {
	answer, err := m.LVMDServer.CreateVolume(ctx, r)
	if err == nil {
		err = m.after(ctx, "create")
	}
	return answer, err
}

func (m *mute) DeleteVolume(ctx context.Context, r *lvmdv1.DeleteVolumeRequest) (*lvmdv1.DeleteVolumeResponse, error) {
	answer, err := m.LVMDServer.DeleteVolume(ctx, r)
	if err == nil {
		err = m.after(ctx, "delete")
	}
	return answer, err
}

func (m *mute) ExpandVolume(ctx context.Context, r *lvmdv1.ExpandVolumeRequest) (*lvmdv1.ExpandVolumeResponse, error) {
	answer, err := m.LVMDServer.ExpandVolume(ctx, r)
	if err == nil {
		err = m.after(ctx, "expand")
	}
	return answer, err
}

// logicalVolumes returns the sizes in MiB of the group's volumes, by name, as LVM has them,
// but for those that lvmd wipes.
func logicalVolumes(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	out := drivertest.ByHand(t, "lvm", "lvs", "--noheadings", "--nosuffix", "--units", "m", "-o", "lv_name,lv_size,lv_tags", drivertest.Group, "--config", drivertest.HandConfig)
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) >= 2 {
			found[fields[0]] = strings.TrimSuffix(fields[1], ".00")
		}
	}
	return found
}

// volumesOf returns the names of the volumes that the machine's lvmd has. It is asked over
// its socket: only an encoded list is complete.
func volumesOf(t *testing.T, m *drivertest.Machine) (found []string) {
	t.Helper()
	conn := must.Get(driver.DialLVMD(m.LVMDSocket()))(t)
	defer conn.Close()
	list := must.Get(lvmdv1.NewLVMDClient(conn).ListVolumes(t.Context(), &lvmdv1.ListVolumesRequest{}))(t)
	for _, v := range list.GetVolumes() {
		found = append(found, v.GetName())
	}
	return found
}

// await fails the test where a call is not done soon.
func await(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	waittest.Until(t, what, func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
}

func makeClass(t *testing.T, c *shippedController) {
	t.Helper()
	mode, reclaim := storagev1.VolumeBindingWaitForFirstConsumer, v1.PersistentVolumeReclaimDelete
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "carve"}, Provisioner: names.Driver, VolumeBindingMode: &mode, ReclaimPolicy: &reclaim}
	must.Get(c.client.StorageV1().StorageClasses().Create(t.Context(), class, metav1.CreateOptions{}))(t)
}

// makeClaim makes a claim of 64 MiB that chose the node.
func makeClaim(t *testing.T, c *shippedController, name string) {
	t.Helper()
	class, block := "carve", v1.PersistentVolumeBlock
	must.Get(c.client.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name), Annotations: map[string]string{volume.AnnSelectedNode: drivertest.NodeName}},
		Spec: v1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeMode: &block, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(64*mib, resource.BinarySI)}}},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}, metav1.CreateOptions{}))(t)
}

func waitBound(t *testing.T, c *shippedController, name string) {
	t.Helper()
	var last *v1.PersistentVolumeClaim
	waittest.Until(t, "claim "+name+" is bound", func() bool {
		var err error
		last, err = c.client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && last.Status.Phase == v1.ClaimBound
	}, func() any { return last })
}

func deleteClaim(t *testing.T, c *shippedController, name string) {
	t.Helper()
	must.Succeed(t, c.client.CoreV1().PersistentVolumeClaims("default").Delete(t.Context(), name, metav1.DeleteOptions{}))
}

func waitGone(t *testing.T, c *shippedController, name string) {
	t.Helper()
	waittest.Until(t, "the PersistentVolume of claim "+name+" is gone", func() bool {
		_, err := c.client.CoreV1().PersistentVolumes().Get(t.Context(), "pvc-uid-"+name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// TestAReplyThatIsLostMakesNoSecondVolume cuts the connection when lvmd has done what the
// controller asked for, and before it can say so.
func TestAReplyThatIsLostMakesNoSecondVolume(t *testing.T) {
	m := drivertest.NewRealMachine(t, "/dev/vdb", "disk")
	lvmd := &mute{LVMDServer: m.LVMD, calls: map[string]int{}}
	c := startController(t, m.Log)
	disconnect := c.connect(t, lvmd)
	t.Cleanup(func() { disconnect() })
	reconnect := func() {
		t.Helper()
		disconnect()
		disconnect = c.connect(t, lvmd)
	}
	makeClass(t, c)

	done := lvmd.drop("create")
	makeClaim(t, c, "data")
	await(t, "lvmd makes the volume", done)
	made := logicalVolumes(t)
	if len(made) != 1 {
		t.Fatalf("after the create whose reply is lost: %v", made)
	}
	reconnect()
	waitBound(t, c, "data")
	if after := logicalVolumes(t); fmt.Sprint(after) != fmt.Sprint(made) {
		t.Errorf("the repeated create changed %v to %v", made, after)
	}
	pv := must.Get(c.client.CoreV1().PersistentVolumes().Get(t.Context(), "pvc-uid-data", metav1.GetOptions{}))(t)
	id := pv.Spec.CSI.VolumeHandle
	if _, is := made[id]; !is {
		t.Fatalf("the PersistentVolume is of %s, made was %v", id, made)
	}

	done = lvmd.drop("expand")
	claims := c.client.CoreV1().PersistentVolumeClaims("default")
	claim := must.Get(claims.Get(t.Context(), "data", metav1.GetOptions{}))(t).DeepCopy()
	claim.Spec.Resources.Requests[v1.ResourceStorage] = *resource.NewQuantity(128*mib, resource.BinarySI)
	must.Get(claims.Update(t.Context(), claim, metav1.UpdateOptions{}))(t)
	await(t, "lvmd grows the volume", done)
	reconnect()
	waittest.Until(t, "the claim has grown, once the node is connected", func() bool {
		now, err := claims.Get(t.Context(), "data", metav1.GetOptions{})
		return err == nil && now.Status.Capacity.Storage().Value() == 128*mib
	}, func() any { return must.Get(claims.Get(t.Context(), "data", metav1.GetOptions{}))(t) })
	if n := lvmd.count("expand"); n < 2 {
		t.Errorf("%d expansions reached lvmd, want the first and its repetition", n)
	}
	if after := logicalVolumes(t); len(after) != 1 || after[id] != "128" {
		t.Errorf("after two expansions to 128 MiB: %v", after)
	}

	done = lvmd.drop("delete")
	deleteClaim(t, c, "data")
	await(t, "lvmd removes the volume", done)
	// A volume of the same name that is made meanwhile is not the one to delete.
	must.Get(m.LVMD.CreateVolume(t.Context(), &lvmdv1.CreateVolumeRequest{Name: "other", RequiredBytes: 64 * mib, Mode: lvmdv1.VolumeMode_VOLUME_MODE_BLOCK}))(t)
	reconnect()
	waitGone(t, c, "data")
	if n := lvmd.count("delete"); n < 2 {
		t.Errorf("%d deletes reached lvmd, want the first and its repetition", n)
	}
	if left := volumesOf(t, m); !slices.Equal(left, []string{"other"}) {
		t.Errorf("left are %q, want the other volume only", left)
	}
	if _, err := m.LVMD.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Name: "other"}); err != nil {
		t.Error(err)
	}
}

// TestOtherDisksUnderANodesNameAreNotTheOldOnes has a node come back with a volume group
// of the same name that is another one.
func TestOtherDisksUnderANodesNameAreNotTheOldOnes(t *testing.T) {
	log := &drivertest.Buffer{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("controller:\n%s", log)
		}
	})
	c := startController(t, log)
	makeClass(t, c)
	group := func(t *testing.T) string {
		t.Helper()
		return strings.TrimSpace(drivertest.ByHand(t, "lvm", "vgs", "--noheadings", "-o", "vg_uuid", drivertest.Group, "--config", drivertest.HandConfig))
	}
	var was string
	t.Run("the disks that it had", func(t *testing.T) { // they go with this test
		m := drivertest.NewRealMachine(t, "/dev/vdb", "disk")
		t.Cleanup(func() { // The controller is not connected any more.
			must.Get(m.LVMD.DeleteVolume(context.Background(), &lvmdv1.DeleteVolumeRequest{Name: "pvc-uid-data"}))(t)
		})
		disconnect := c.connect(t, m.LVMD)
		defer disconnect()
		makeClaim(t, c, "data")
		waitBound(t, c, "data")
		was = group(t)
	})
	if t.Failed() {
		return
	}
	m := drivertest.NewRealMachine(t, "/dev/vdb", "disk")
	is := group(t)
	if is == was {
		t.Fatalf("the group is still %s", was)
	}
	// What is on these disks: a volume of an administrator's, with data.
	drivertest.ByHand(t, "lvm", "lvcreate", "--yes", "--wipesignatures", "n", "--zero", "n", "-L", "16m", "-n", "precious", drivertest.Group, "--config", drivertest.HandConfig)
	path := "/dev/mapper/" + drivertest.Group + "-precious"
	t.Cleanup(func() {
		drivertest.ByHand(t, "lvm", "lvremove", "--yes", drivertest.Group+"/precious", "--config", drivertest.HandConfig)
	})
	content := strings.Repeat("what must be kept\n", 1024)
	must.Succeed(t, os.WriteFile(path, []byte(content), 0o600))
	kept := func() {
		t.Helper()
		got := make([]byte, len(content))
		f := must.Get(os.Open(path))(t)
		defer f.Close()
		if n, err := f.ReadAt(got, 0); err != nil || string(got) != content {
			t.Errorf("the administrator's volume was changed: read %d bytes, %v", n, err)
		}
	}
	volumes := func(want ...string) {
		t.Helper()
		if have := volumesOf(t, m); !slices.Equal(have, want) {
			t.Errorf("lvmd has %q, want %q", have, want)
		}
	}
	disconnect := c.connect(t, m.LVMD)
	t.Cleanup(func() { disconnect() })

	// Another claim is served here: by then the controller has the node's report, and misses the
	// volume the next time that it looks, which it does once a minute.
	makeClaim(t, c, "fresh")
	waitBound(t, c, "fresh")
	var pv *v1.PersistentVolume
	waittest.Until(t, "the volume is called missing", func() bool {
		var err error
		pv, err = c.client.CoreV1().PersistentVolumes().Get(t.Context(), "pvc-uid-data", metav1.GetOptions{})
		return err == nil && pv.Status.Reason != ""
	}, func() any { return pv })
	for _, want := range []string{pv.Spec.CSI.VolumeHandle, "as on other disks", was, is} {
		if !strings.Contains(pv.Status.Message, want) {
			t.Errorf("the PersistentVolume says %q, not %q", pv.Status.Message, want)
		}
	}
	claim, err := c.client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "data", metav1.GetOptions{})
	if err != nil || claim.DeletionTimestamp != nil || claim.Spec.VolumeName != pv.Name {
		t.Errorf("the claim was not kept for the old disks: %v, %v", claim, err)
	}
	volumes("pvc-uid-fresh") // nothing was made for it here
	kept()

	// The old claim's end removes nothing that is here.
	deleteClaim(t, c, "data")
	waitGone(t, c, "data")
	volumes("pvc-uid-fresh")
	kept()
	deleteClaim(t, c, "fresh")
	waitGone(t, c, "fresh")
	volumes()
	kept()
}
