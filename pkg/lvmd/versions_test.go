//go:build !kernel

package lvmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
	"google.golang.org/grpc/codes"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
)

// setFormat marks the journal as migrated by another version.
func (m *machine) setFormat(t *testing.T, format string) {
	t.Helper()
	db := must.Get(bbolt.Open(filepath.Join(m.state, "journal.db"), 0o600, nil))(t)
	must.Succeed(t, db.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte(format)) }))
	must.Succeed(t, db.Close())
}

func TestLvmdDoesNotStartWithTheJournalOfALaterVersion(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	kept := d.create(fsRequest("kept", 8, ""))
	deleted := d.create(request("deleted", 8))
	crashed := d.gate.crashNext("delete: chunk wiped")
	must.Get(d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: deleted.GetId()}))(t)
	<-crashed
	d.kill()
	m.setFormat(t, "2")
	before := must.Get(os.ReadFile(filepath.Join(m.state, "journal.db")))(t)
	commands := m.fake.Commands(lvmfake.OpScan)
	_, err := m.tryStart(t)
	if later, ok := errors.AsType[*journal.FormatError](err); !ok || later.Found != 2 || later.Known != 1 {
		t.Fatalf("it starts, with error %v", err)
	}
	if now := must.Get(os.ReadFile(filepath.Join(m.state, "journal.db")))(t); !bytes.Equal(before, now) || m.fake.Commands(lvmfake.OpScan) != commands {
		t.Error("the journal was changed, or LVM asked")
	}
	m.setFormat(t, "1")
	d = m.start(t)
	if got := d.list(); len(got) != 1 || got[0].GetId() != kept.GetId() {
		t.Errorf("there are %v", got)
	}
	d.delete(kept.GetId())
	d.checkClean()
}

func TestAVolumeOfALaterVersionIsLeftAlone(t *testing.T) {
	const later = "carve.v2"
	for _, c := range []struct {
		name string
		// at is the previous lvmd's crash point, if any; lost means that its journal is lost.
		at     string
		delete bool
		lost   bool
	}{
		{name: "that is ready"},
		{name: "without a journal", lost: true},
		{name: "that is a tombstone", at: "delete: tombstone written", delete: true},
		{name: "that is being wiped", at: "delete: chunk wiped", delete: true},
		{name: "that was being made", at: "after create"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			d := m.start(t)
			other := d.create(request("other", 2)).GetId()
			var id string
			if c.at == "" || c.delete {
				id = d.create(request("v", 8)).GetId()
			}
			if c.at == "" {
				d.stop()
			} else {
				crashed := d.gate.crashNext(c.at)
				go func() { // It gets no answer.
					if c.delete {
						_, _ = d.client.DeleteVolume(context.Background(), &lvmdv1.DeleteVolumeRequest{Id: id})
					} else {
						_, _ = d.client.CreateVolume(context.Background(), request("v", 8))
					}
				}()
				<-crashed
				d.kill()
			}
			for _, v := range must.Get(m.fake.Scan(t.Context(), []string{testGroup}))(t)[0].Volumes {
				if v.Name != other {
					id = v.Name
				}
			}
			tags := m.tagsOf(t, id)
			must.Succeed(t, m.fake.Retag(t.Context(), testGroup, id, []string{spec.TagMarker}, []string{later}))
			must.Succeed(t, m.fake.Fill(testGroup, id, 0x5a))
			if c.lost {
				m.loseJournal(t)
			}
			d = m.start(t)
			if got := d.list(); len(got) != 1 || got[0].GetId() != other {
				t.Fatalf("there are %v", got)
			}
			class := d.state().GetClasses()[0]
			if i := class.GetConditions(); len(i) != 1 || i[0].GetType() != conditions.VolumesLeftAlone ||
				!strings.Contains(i[0].GetMessage(), id) || !strings.Contains(i[0].GetMessage(), later) {
				t.Errorf("conditions %v", i)
			}
			_, err := d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: id})
			wantCode(t, err, codes.FailedPrecondition, names.ReasonVolumeLeftAlone)
			if free := d.available(); free != testTotal-10 {
				t.Errorf("%d extents are free, want %d", free, testTotal-10)
			}
			d.delete(d.create(request("more", 2)).GetId())
			d.stop()
			d = m.start(t)
			d.delete(other)
			d.stop()
			if blocks, pattern, err := m.fake.Traces(testGroup, id); err != nil || blocks != int(8*testExtent/4096) || pattern != 0x5a {
				t.Errorf("it holds %d blocks of %#x, error %v", blocks, pattern, err)
			}
			must.Succeed(t, m.fake.Retag(t.Context(), testGroup, id, []string{later}, []string{spec.TagMarker}))
			d = m.start(t)
			switch got := d.list(); {
			case c.at == "" && (len(got) != 1 || got[0].GetId() != id || got[0].GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY):
				t.Errorf("with its tags %q again there are %v", tags, got)
			case c.at == "":
				d.delete(id)
			}
			d.checkClean()
		})
	}
}

// The journal and tags are from an lvmd of the earlier version that e2e/earlier names, killed
// in the middle of a wipe.
func TestTheVersionBeforeIsCarriedOn(t *testing.T) {
	type recorded struct {
		Name string
		Size int64
		Tags []string
	}
	var volumes []recorded
	must.Succeed(t, json.Unmarshal(must.Get(os.ReadFile("testdata/earlier/volumes.json"))(t), &volumes))
	file := must.Get(os.ReadFile("testdata/earlier/journal.db"))(t)
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("its journal is lost: %t", lost), func(t *testing.T) {
			m := newMachine(t)
			idents, deleted := map[string]spec.Identity{}, ""
			for _, v := range volumes {
				must.Succeed(t, m.fake.Create(t.Context(), lvm.CreateOptions{Group: testGroup, Volume: v.Name, Extents: v.Size / testExtent, Tags: v.Tags}))
				must.Succeed(t, m.fake.Fill(testGroup, v.Name, 0x33))
				i := must.Get(spec.FromTags(v.Tags))(t)
				idents[i.Name] = i
				if i.Name == "deleted" {
					deleted = v.Name
				}
				m.formatted["/dev/"+testGroup+"/"+v.Name] = filesystem.FormatOptions{Type: i.FSType, UUID: i.FSUUID}
			}
			path := filepath.Join(m.state, "journal.db")
			var wiped int64
			if !lost {
				must.Succeed(t, os.WriteFile(path, file, 0o600))
				j, found, aside, err := journal.Open(path)
				if err != nil || !found || aside != "" {
					t.Fatalf("found %v, moved aside %q, error %v", found, aside, err)
				}
				records := must.Get(j.Volumes())(t)
				must.Succeed(t, j.Close())
				wiped = records[deleted].Wiped
				if len(records) != 3 || records[deleted].Phase != spec.Deleting || wiped == 0 || wiped >= 32*testExtent {
					t.Fatalf("records %+v", records)
				}
				for id, r := range records {
					if r.Ident != idents[r.Ident.Name] || r.Group != testGroup || r.Created.IsZero() || id != deleted && r.Phase != spec.Ready {
						t.Errorf("record %+v, want the identity %+v", r, idents[r.Ident.Name])
					}
				}
			}
			var crashed <-chan struct{}
			d := m.start(t, func(d *daemon, _ *Options) { crashed = d.gate.crashNext("delete: wiped") })
			got := d.list()
			if len(got) != 2 {
				t.Errorf("there are %v", got)
			}
			for _, v := range got {
				if i := idents[v.GetName()]; v.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY || v.GetFsUuid() != i.FSUUID || v.GetOwner().GetClaimName() != i.Owner.Claim {
					t.Errorf("volume %v, want %+v", v, i)
				}
			}
			<-crashed
			d.kill()
			// lvmd does not wipe again: here, the wiped part shows that.
			if blocks, _, err := m.fake.Traces(testGroup, deleted); err != nil || int64(blocks) != wiped/4096 {
				t.Errorf("%d blocks were not wiped, want the %d that were before, error %v", blocks, wiped/4096, err)
			}
			must.Succeed(t, m.fake.Fill(testGroup, deleted, 0))
			d = m.start(t)
			for _, v := range d.list() {
				d.delete(v.GetId())
			}
			d.checkClean()
		})
	}
}
