//go:build !kernel

package lvmd

import (
	"context"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/must"
)

func TestThatAVolumeIsEncryptedIsNotedForGood(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	encrypted, other := d.create(kept(request("pvc-1", 4))), d.create(request("pvc-2", 4))
	note := func(v *lvmdv1.Volume) error {
		_, err := d.client.NoteEncrypted(t.Context(), &lvmdv1.NoteEncryptedRequest{Id: v.GetId()})
		return err
	}
	noted := func() bool {
		t.Helper()
		listed := d.list()
		at := slices.IndexFunc(listed, func(v *lvmdv1.Volume) bool { return v.GetId() == encrypted.GetId() })
		one := d.ready("pvc-1").GetEncrypted()
		if listed[at].GetEncrypted() != one {
			t.Errorf("the list says %t, the volume itself %t", listed[at].GetEncrypted(), one)
		}
		return one
	}
	wantCode(t, note(other), codes.InvalidArgument, names.ReasonInvalidField)
	wantCode(t, note(&lvmdv1.Volume{Id: "cvunknown"}), codes.NotFound, names.ReasonVolumeNotFound)
	if noted() {
		t.Error("a new volume is noted as encrypted")
	}
	for range 2 {
		must.Succeed(t, note(encrypted))
	}
	if !noted() {
		t.Error("it is not noted")
	}
	d.kill()
	d = m.start(t)
	if !noted() {
		t.Error("it is not noted after a restart")
	}
	d.delete(encrypted.GetId())
	d.delete(other.GetId())
	d.checkClean()
}

// A group with full metadata takes no tag; its volumes still work.
func TestAVolumeIsNotedAsEncryptedThoughLVMTakesNoTag(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(kept(request("pvc-1", 4)))
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpTag {
			return lvm.ErrNoSpace
		}
		return nil
	}
	must.Get(d.client.NoteEncrypted(t.Context(), &lvmdv1.NoteEncryptedRequest{Id: v.GetId()}))(t)
	if !d.ready("pvc-1").GetEncrypted() {
		t.Error("it is not noted")
	}
}

func TestAVolumeThatIsBeingDeletedIsNotNotedAsEncrypted(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(kept(request("pvc-1", 4)))
	claimed := must.Get(d.claimForDeletion(inventory.ToDelete{ID: v.GetId()}))(t)
	_, err := d.client.NoteEncrypted(t.Context(), &lvmdv1.NoteEncryptedRequest{Id: v.GetId()})
	wantCode(t, err, codes.Aborted, names.ReasonOperationPending)
	claimed.Release()
	d.delete(v.GetId())
	d.checkClean()
}
