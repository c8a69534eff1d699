//go:build !kernel

package lvmd

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// Crash cases of transitions that no scenario passes, see inventory.Transitions.

func (d *daemon) stateOf(id string) inventory.State {
	if v, known := d.inventory.Inspect()[id]; known {
		return v.State
	}
	return inventory.Gone
}

// inspect ignores tombstones.
func (d *daemon) inspect(name string) inventory.Inspection {
	for _, v := range d.inventory.Inspect() {
		if v.Record.Ident.Name == name && v.Record.Phase != spec.Deleting {
			return v
		}
	}
	return inventory.Inspection{}
}

func withoutFileSystem(t *testing.T, r *lvmdv1.CreateVolumeRequest) (m *machine, id string) {
	t.Helper()
	m = newMachine(t)
	d := m.start(t)
	id = d.create(r).GetId()
	m.untagged(t, id)
	d.kill()
	m.loseJournal(t)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.formatted = map[string]filesystem.FormatOptions{}
	return m, id
}

func TestKilledAroundAVolumeWithoutItsFileSystem(t *testing.T) {
	r := fsRequest("a", 4, "ext4")
	m, id := withoutFileSystem(t, r)
	d := m.start(t)
	d.kill()
	d = m.start(t)
	if s := d.stateOf(id); s != inventory.Unfinished {
		t.Fatalf("state %q after two starts", s)
	}
	h := must.Get(m.fake.Open(testGroup, id))(t)
	_, err := d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: id})
	wantCode(t, err, codes.FailedPrecondition, names.ReasonVolumeInUse)
	must.Succeed(t, h.Close())
	m.formatHook = func(context.Context, string) error { t.Error("it is formatted"); return nil }
	_, err = d.client.CreateVolume(t.Context(), r)
	wantCode(t, err, codes.FailedPrecondition, names.ReasonVolumeLeftAlone)
	fsUUID := d.inspect("a").Record.Ident.FSUUID
	d.kill()
	m.mu.Lock()
	m.formatted["/dev/"+testGroup+"/"+id] = filesystem.FormatOptions{Type: filesystem.Ext4, UUID: fsUUID}
	m.mu.Unlock()
	d = m.start(t)
	if again := d.create(r); again.GetId() != id {
		t.Errorf("volume %v, want %s", again, id)
	}
	d.delete(id)
	d.checkClean()
}

func TestAnUnfinishedVolumeIsDeleted(t *testing.T) {
	m, id := withoutFileSystem(t, fsRequest("a", 4, "ext4"))
	d := m.start(t)
	d.delete(id)
	d.checkClean()
}

func TestAVolumeThatIsBeingDeletedIsNotCreated(t *testing.T) {
	r := fsRequest("a", 4, "ext4")
	m, id := withoutFileSystem(t, r)
	d := m.start(t)
	claimed := must.Get(d.claimForDeletion(inventory.ToDelete{ID: id}))(t)
	_, err := d.client.CreateVolume(t.Context(), r)
	wantCode(t, err, codes.Aborted, names.ReasonOperationPending)
	claimed.Release()
	d.delete(id)
	d.checkClean()
}

// The volume is deleted while a scan that found it probes its contents.
func TestADeletionBesideAnAdoptionIsNotLost(t *testing.T) {
	m := newMachine(t)
	// Only the journal records deletions.
	var unmarked atomic.Bool
	unmarked.Store(true)
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpTag && unmarked.Load() {
			return errors.New("no")
		}
		return nil
	}
	probing, found := make(chan struct{}), make(chan struct{})
	d := m.start(t, func(_ *daemon, o *Options) {
		o.Probe = func(device string) (filesystem.Info, error) {
			close(probing)
			<-found
			return m.probe(device)
		}
	})
	ident := spec.Identity{Name: "a", Class: "local", Size: spec.Size{Required: testExtent}, Format: spec.Format{FSType: filesystem.Ext4, FSUUID: spec.NewUUID()}}
	id := spec.NewVolumeID()
	m.formatted["/dev/"+testGroup+"/"+id] = filesystem.FormatOptions{Type: filesystem.Ext4, UUID: ident.FSUUID}
	must.Succeed(t, m.fake.Create(t.Context(), lvm.CreateOptions{Group: testGroup, Volume: id, Extents: 1, Tags: ident.Tags()}))
	<-probing
	_, err := d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: id})
	close(found)
	if err != nil {
		wantCode(t, err, codes.Aborted, names.ReasonOperationPending)
		d.deleteWithRetries(&lvmdv1.DeleteVolumeRequest{Id: id})
	}
	done := must.Get(d.groups.Acquire(t.Context(), d.groups.Named(testGroup)))(t)
	done()
	d.kill()
	unmarked.Store(false)
	d = m.start(t)
	if got := d.list(); len(got) != 0 {
		t.Errorf("what was deleted is back: %v", got)
	}
	d.checkClean()
}

func TestKilledAroundALostKey(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	id := d.create(sealed(fsRequest("a", 4, "ext4"))).GetId()
	d.kill()
	m.fake.Deactivate()
	// At first the volume has no device, then mkfs fails.
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpActivate {
			return &lvm.CommandError{Command: "lvchange", ExitCode: 5, Message: "not now"}
		}
		return nil
	}
	m.formatHook = func(context.Context, string) error { return errors.New("no file system today") }
	d = m.start(t)
	waittest.Until(t, "its device was looked for", func() bool {
		v := d.inventory.Inspect()[id]
		return v.Failures > 0 && v.State == inventory.Ready
	})
	d.kill()
	m.fake.Before = nil
	d = m.start(t)
	waittest.Until(t, "it is known to have lost its key", func() bool { return d.stateOf(id) == inventory.KeyLost })
	d.deleteWithRetries(&lvmdv1.DeleteVolumeRequest{Id: id})
	d.checkClean()
}

func TestAfterACrashACreationThatLVMRefusesLeavesNothing(t *testing.T) {
	m := newMachine(t)
	m.start(t).kill()
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpCreate {
			return &lvm.CommandError{Command: "lvcreate", ExitCode: 5, Message: "no", Err: lvm.ErrNoSpace}
		}
		return nil
	}
	d := m.start(t)
	_, err := d.client.CreateVolume(t.Context(), request("a", 4))
	wantCode(t, err, codes.ResourceExhausted, names.ReasonNoSpace)
	m.fake.Before = nil
	d.checkClean()
}

func TestACopyIsContinuedAfterACrashAndAStop(t *testing.T) {
	m := newMachine(t)
	m.start(t).kill()
	source, id := interruptCopy(t, m, (*daemon).stop)
	d := m.start(t)
	if c := d.create(from(request("c", 8), source)); c.GetId() != id {
		t.Errorf("volume %v, want %s", c, id)
	}
	d.shows(id, 8, 0x33)
}
