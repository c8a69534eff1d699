//go:build !kernel

package inventory

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/iolimit"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

const extent = 4 << 20

func parsed(t *testing.T, classes string) *config.Config {
	return must.Get(config.Parse("lvmd.yaml", []byte("apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n"+classes)))(t)
}

// scanned returns an inventory of one class, in a scanned group of ten extents.
func scanned(t *testing.T, o Options) (*Inventory, *Group) {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	m := NewInventory("run", o)
	g := m.Configure(parsed(t, "- {name: local, default: true, volumeGroup: carve}\n"), nil)[0]
	g.ApplyScan(Scan{
		Group: &lvm.Group{
			Name: "carve", UUID: "uuid", Seqno: 1, ExtentSize: extent, Extents: 10, FreeExtents: 10, FreeSegments: 1,
			Devices: []lvm.PhysicalVolume{{Path: "/dev/vdb", UUID: "pv", Allocatable: true, Extents: 10}},
		},
		Metadata: ondisk.Metadata{Seqno: 1, Size: 1000, Limit: 1 << 20},
	}, nil)
	return m, g
}

// free returns the class' reported free space, in extents.
func free(m *Inventory) int64 { return m.Classes()[0].GetAvailableBytes() / extent }

func admitted(t *testing.T, m *Inventory, extents int64) Admission {
	t.Helper()
	ident := spec.Identity{Name: "v", Block: true, DefaultClass: true, Size: spec.Size{Required: extents * extent}}
	return must.Get(m.AdmitCreation(ident, iolimit.Limits{}, false))(t)
}

func TestAnEffectEndsItsReservationInTheSameInstant(t *testing.T) {
	m, g := scanned(t, Options{})
	a := admitted(t, m, 4)
	if n := free(m); n != 6 || !a.New {
		t.Fatalf("%d extents are free after the admission of 4 of 10, new %v", n, a.New)
	}
	w := m.Watch("", 0)
	<-w.Wake()
	w.Next()
	change, effect := must.Get(g.BeginChange())(t), Created(a.Volume, nil, errors.New("not mapped"))
	now := ondisk.Metadata{Seqno: 2, Size: 1500, Limit: 1 << 20}
	if explains, _ := change.Explains(effect, now); !explains {
		t.Fatal("the next sequence number is not explained by the command")
	}
	if explains, _ := change.Explains(effect, ondisk.Metadata{Seqno: 3}); explains {
		t.Error("a change of another program is taken for the command's")
	}
	change.Commit(effect, now, ondisk.Placement{})
	if n := free(m); n != 6 || g.creating != 0 || g.reservedText != 0 || g.creations != 0 {
		t.Errorf("%d extents are free, reserved: %d extents, %d bytes of metadata, %d volumes", n, g.creating, g.reservedText, g.creations)
	}
	if len(w.wake) != 0 {
		t.Errorf("watchers are notified of %v, although nothing changed for them", w.Next())
	}
}

func TestACreationOfWhichLVMMadeNothingLeavesNothing(t *testing.T) {
	m, g := scanned(t, Options{})
	a := admitted(t, m, 4)
	if a.Volume.UndoCreation(true) || free(m) != 10 || len(m.Inspect()) != 0 {
		t.Errorf("%d extents are free, volumes %v", free(m), m.Inspect())
	}
	a = admitted(t, m, 4)
	g.SetStale()
	if !a.Volume.UndoCreation(true) {
		t.Error("it is forgotten although LVM may have made it")
	}
}

// The operation may be a record of the volume's encryption.
func TestTagsThatAreDueDuringAnOperationAreTakenOffAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, g := scanned(t, Options{})
		ident := spec.Identity{Name: "v", Block: true, DefaultClass: true, Encryption: names.EncryptionLUKS, Size: spec.Size{Required: extent}}
		a := must.Get(m.AdmitCreation(ident, iolimit.Limits{}, false))(t)
		v := a.Volume
		must.Get(g.BeginChange())(t).Commit(Created(v, nil, errors.New("not mapped")), ondisk.Metadata{Seqno: 2, Size: 1500, Limit: 1 << 20}, ondisk.Placement{})
		v.End(a.Creation, nil)
		due, retry := NextToUntag(g)
		if due || retry.IsZero() {
			t.Fatalf("due %v, again at %v: want it to be due later", due, retry)
		}
		if _, _, err := m.ClaimToNote(v.ID(), Encrypted); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(retry))
		if due, retry = NextToUntag(g); due || !retry.After(time.Now()) {
			t.Fatalf("due %v, again at %v, while an operation has the volume: want it to be looked at again", due, retry)
		}
		read := v.Record()
		read.Encrypted = true
		v.SetRecord(read)
		time.Sleep(time.Until(retry))
		if due, _ = NextToUntag(g); !due {
			t.Error("it is not due after the operation")
		}
	})
}

func TestACreationThatIsCancelledBeforeItBeginsIsCancelledThen(t *testing.T) {
	m, _ := scanned(t, Options{CallerGrace: time.Nanosecond})
	ident := spec.Identity{Name: "v", DefaultClass: true, Size: spec.Size{Required: extent}}
	a := must.Get(m.AdmitCreation(ident, iolimit.Limits{}, false))(t)
	a.Creation.Leave()
	waittest.Until(t, "it is cancelled", func() bool { return m.isCancelled(a.Creation) })
	cancelled := false
	a.Creation.Begin(func() { cancelled = true })
	if !cancelled {
		t.Error("it goes on")
	}
}

func (m *Inventory) isCancelled(op *Creation) bool {
	m.lock()
	defer m.unlock()
	return op.cancelled
}

// Called functions may use the inventory.
func TestNothingIsCalledUnderTheLock(t *testing.T) {
	var m *Inventory
	var entered, defects int
	m, g := scanned(t, Options{
		Entered: func(State, State) { m.Inspect(); entered++ },
		Defect:  func(string, ...any) { m.Inspect(); defects++ },
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		v := admitted(t, m, 1).Volume
		v.MarkDeleted(nil)
		WipeStep{Volume: v, WipeResult: WipeResult{Done: true}}.End()
		v.Release()
		m.lock()
		m.enter(v, Ready) // A tombstone never comes back.
		m.unlock()
	}()
	select {
	case <-done:
	case <-time.After(waittest.Limit):
		t.Fatal("the lock is held while a function is called")
	}
	if entered != 4 || defects != 1 {
		t.Errorf("%d changes of states and %d defects are observed, volume in group %s", entered, defects, g.Name())
	}
}

func TestDeviceOfAVolumeLostDuringItsDeletionIsReturned(t *testing.T) {
	m, g := scanned(t, Options{})
	a := admitted(t, m, 1)
	v := a.Volume
	must.Get(g.BeginChange())(t).Commit(Created(v, nil, errors.New("not mapped")), ondisk.Metadata{Seqno: 2, Size: 1500, Limit: 1 << 20}, ondisk.Placement{})
	v.End(a.Creation, nil)
	must.Get(m.ClaimForDeletion(ToDelete{ID: v.ID()}))(t)
	g.ApplyScan(Scan{Group: &lvm.Group{Name: "carve", UUID: "uuid", Seqno: 3, ExtentSize: extent}}, nil)
	h := &struct{ blockdev.Handle }{}
	if left := v.MarkDeleted(h); left != h || len(m.TakeHandles()) != 0 {
		t.Errorf("device %v is left, want %v", left, h)
	}
}
