//go:build !kernel

package lvmd

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/must"
)

func TestADeletedVolumeIsGoneAtOnceAndItsSpaceOnceItIsClean(t *testing.T) {
	m := newMachine(t)
	goOn := make(chan struct{})
	d := m.start(t)
	v := d.create(request("pvc-1", 3))
	must.Succeed(t, m.fake.Fill(testGroup, v.GetId(), 0xaa))
	m.fake.BeforeZero = func(_, volume string, _, _ int64) error {
		if volume == v.GetId() {
			<-goOn
		}
		return nil
	}
	d.delete(v.GetId())
	if got := d.list(); len(got) != 0 {
		t.Errorf("still listed: %v", got)
	}
	_, err := d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Name: "pvc-1"})
	wantCode(t, err, codes.NotFound, names.ReasonVolumeNotFound)
	if got := d.available(); got != testTotal-3 {
		t.Errorf("%d extents available before the wipe", got)
	}
	if again := d.create(request("pvc-1", 1)); again.GetId() == v.GetId() {
		t.Error("the deleted volume came back")
	} else {
		defer d.checkClean()
		defer d.delete(again.GetId())
	}
	d.delete(v.GetId()) // once more is no error
	close(goOn)
}

// A PersistentVolume of the caller would name a volume that is about to disappear.
func TestNoRequestIsGivenAVolumeThatIsBeingDeleted(t *testing.T) {
	m := thinMachine(t, "size: 40Mi")
	d := m.start(t)
	v := d.create(request("pvc-1", 1))
	snapshot := &lvmdv1.CreateSnapshotRequest{Name: "snap-1", SourceVolumeId: v.GetId()}
	s := must.Get(d.client.CreateSnapshot(t.Context(), snapshot))(t).GetSnapshot()
	ask := map[string]func() error{
		v.GetId(): func() error { _, err := d.client.CreateVolume(t.Context(), request("pvc-1", 1)); return err },
		s.GetId(): func() error { _, err := d.client.CreateSnapshot(t.Context(), snapshot); return err },
	}
	for id, again := range ask {
		claimed := must.Get(d.claimForDeletion(inventory.ToDelete{ID: id, Snapshot: id == s.GetId()}))(t)
		wantCode(t, again(), codes.Aborted, names.ReasonOperationPending)
		claimed.Release()
		must.Succeed(t, again())
	}
}

func TestAMountedVolumeIsNotDeleted(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(request("pvc-1", 1))
	must.Succeed(t, m.fake.Mount(testGroup, v.GetId()))
	_, err := d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Name: "pvc-1"})
	wantCode(t, err, codes.FailedPrecondition, names.ReasonVolumeInUse)
	m.fake.Unmount(testGroup, v.GetId())
	d.delete(v.GetId())
	d.checkClean()
}

// Marking and removing wait until the others are deleted and wiped, as with slow commands.
func TestManyDeletesTakeFewCommands(t *testing.T) {
	m := newMachine(t)
	var marked, removed sync.Once
	deleted := make(chan struct{})
	d := m.start(t, func(d *daemon, o *Options) {
		pass := o.crashPoint
		o.crashPoint = func(point string) {
			pass(point)
			switch point {
			case "delete: marked":
				marked.Do(func() {
					select {
					case <-deleted:
					case <-t.Context().Done():
					}
				})
			case "delete: removed":
				removed.Do(func() {
					for wiped := false; !wiped && t.Context().Err() == nil; time.Sleep(time.Millisecond) {
						wiped = true
						for _, v := range d.inventory.Inspect() {
							wiped = wiped && v.State == inventory.Wiped
						}
					}
				})
			}
		}
	})
	var ids []string
	for i := range 32 {
		ids = append(ids, d.create(request(fmt.Sprintf("pvc-%d", i), 1)).GetId())
	}
	for _, id := range ids {
		d.delete(id)
	}
	close(deleted)
	d.checkClean()
	if n := m.fake.Commands(lvmfake.OpTag); n > 2 {
		t.Errorf("%d commands marked 32 volumes", n)
	}
	// One for the volumes wiped first, one for the others, and one for checkClean's.
	if n := m.fake.Commands(lvmfake.OpRemove); n > 3 {
		t.Errorf("%d commands removed 32 volumes", n)
	}
}
