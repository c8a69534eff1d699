//go:build kernel

package lvmd_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// rollBack makes all records provisional and of the given phase. lvmd must have ended.
func (n *node) rollBack(t *testing.T, phase spec.Phase) {
	t.Helper()
	j, _, _, err := journal.Open(filepath.Join(n.dir, "state", "journal.db"))
	must.Succeed(t, err)
	defer j.Close()
	for _, r := range must.Get(j.Volumes())(t) {
		r.Phase, r.Tagged, r.Provisional = phase, phase == spec.Creating, true
		must.Succeed(t, j.PutVolume(r))
	}
}

func (p *process) checkKept(v *lvmdv1.Volume) {
	p.t.Helper()
	_, err := p.client.DeleteVolume(p.t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId(), OnlyProvisional: true})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "is not provisional") || p.volume(v.GetId()).GetProvisional() {
		p.t.Errorf("volume %s is provisional, error %v", v.GetName(), err)
	}
}

// The volumes, one of them mounted, were provisional until they were kept.
func TestAJournalThatIsRolledBackDestroysNoRealVolume(t *testing.T) {
	for name, test := range map[string]struct {
		node func(*testing.T) *node
		// lost means that the journal is lost; early means that this may happen before the tags are
		// removed.
		lost, early bool
	}{
		"thick": {thickNode, false, true}, "thin": {poolNode, false, false}, "RAID": {mirrorNode, false, true}, "thick, lost": {thickNode, true, true},
		"thick, later": {thickNode, false, false}, "thin, lost": {poolNode, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := test.node(t)
			p := n.start()
			all := p.available()
			provisional := func(r *lvmdv1.CreateVolumeRequest) *lvmdv1.Volume {
				r.Provisional = true
				return p.create(r)
			}
			raw, fs := provisional(create("raw", 8<<20, "")), provisional(create("fs", 16<<20, "ext4"))
			fill(t, raw, 0x5a)
			ask := create("copy", 8<<20, "")
			ask.Source = &lvmdv1.VolumeSource{VolumeId: raw.GetId()}
			copied := provisional(ask)
			volumes := []*lvmdv1.Volume{raw, fs, copied}
			for _, v := range volumes {
				if !v.GetProvisional() {
					t.Errorf("volume %v is not provisional", v)
				}
				must.Get(p.client.KeepVolume(t.Context(), &lvmdv1.KeepVolumeRequest{Id: v.GetId()}))(t)
			}
			tagsOf := func(names ...string) string {
				return lvmByHand(t, append([]string{"lvs", "--noheadings", "-o", "lv_tags"}, names...)...)
			}
			tagged := func(names ...string) bool {
				tags := tagsOf(names...)
				return strings.Contains(tags, "carve.making") || strings.Contains(tags, "carve.copying")
			}
			if test.early {
				if name != "thin, lost" && tagged(n.group+"/"+raw.GetId(), n.group+"/"+copied.GetId()) {
					t.Error("raw volumes are handed out with their tags")
				}
			} else {
				waittest.Until(t, "the tags are taken off", func() bool { return !tagged(n.group) && !strings.Contains(tagsOf(n.group), "carve.provisional") })
			}
			dir, unmount := mount(t, fs)
			write(t, dir, "kept")
			must.Succeed(t, p.stop())
			if test.lost {
				must.Succeed(t, os.Remove(filepath.Join(n.dir, "state", "journal.db")))
			} else {
				n.rollBack(t, spec.Creating)
			}
			for range 2 {
				p = n.start()
				for _, v := range volumes {
					if got := p.volume(v.GetId()); got.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY || got.GetName() != v.GetName() {
						t.Fatalf("volume %v is now %v", v, got)
					}
					if test.lost || !test.early {
						p.checkKept(v)
					}
				}
				must.Succeed(t, p.stop())
				if !test.lost {
					n.rollBack(t, spec.Ready)
				}
			}
			p = n.start()
			if got := contents(t, dir); got != "kept" {
				t.Errorf("contents %q", got)
			}
			unmount()
			for _, v := range []*lvmdv1.Volume{raw, copied} {
				if got := must.Get(os.ReadFile(v.GetDevicePath()))(t); !bytes.Equal(got, bytes.Repeat([]byte{0x5a}, len(got))) || int64(len(got)) != v.GetSizeBytes() {
					t.Errorf("volume %s of %d bytes does not hold what was written to it", v.GetName(), len(got))
				}
			}
			for _, v := range volumes {
				p.delete(v.GetId())
			}
			waittest.Until(t, "all space is back", func() bool { return p.available() == all && len(n.leftovers()) == 0 })
		})
	}
}

func TestAJournalThatIsRolledBackReformatsNoRealVolume(t *testing.T) {
	n := newNode(t)
	p := n.start()
	fs, raw := p.create(sealed(create("fs", 16<<20, "ext4"))), p.create(sealed(create("raw", 8<<20, "")))
	fill(t, raw, 0x5a)
	dir, unmount := mount(t, fs)
	write(t, dir, "kept")
	unmount()
	must.Succeed(t, p.stop())
	n.rollBack(t, spec.DataLost)
	p = n.start()
	for _, was := range []*lvmdv1.Volume{fs, raw} {
		waittest.Until(t, "it is ready", func() bool {
			return p.volume(was.GetId()).GetState() == lvmdv1.VolumeState_VOLUME_STATE_READY
		})
		if v := p.volume(was.GetId()); v.GetDeviceMinor() != was.GetDeviceMinor() {
			t.Errorf("volume %v, was %v", v, was)
		}
	}
	checkFilled(t, p.volume(raw.GetId()), 0x5a, 8<<20)
	dir, unmount = mount(t, p.volume(fs.GetId()))
	if got := contents(t, dir); got != "kept" {
		t.Errorf("contents %q", got)
	}
	unmount()
	p.delete(fs.GetId())
	p.delete(raw.GetId())
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 && len(n.sealedDevices()) == 0 })
}

func TestAJournalOfALaterFormatLeavesRealVolumesAlone(t *testing.T) {
	n := newNode(t)
	p := n.start()
	all := p.available()
	raw, fs := p.create(create("raw", 8<<20, "")), p.create(create("fs", 16<<20, "ext4"))
	fill(t, raw, 0x5a)
	dir, unmount := mount(t, fs)
	write(t, dir, "kept")
	n.waitUntagged()
	must.Succeed(t, p.stop())
	before := must.Get(os.ReadFile(n.journalFile()))(t)
	db := must.Get(bbolt.Open(n.journalFile(), 0o600, nil))(t)
	must.Succeed(t, db.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte("99")) }))
	must.Succeed(t, db.Close())
	later, seqno := must.Get(os.ReadFile(n.journalFile()))(t), n.seqnoOn("/dev/vdb")

	for range 2 {
		out, err := n.command().CombinedOutput()
		for _, want := range []string{n.journalFile(), "format 99", "install that version again"} {
			if err == nil || !strings.Contains(string(out), want) {
				t.Errorf("lvmd ended with %v, and said %s, want %q", err, out, want)
			}
		}
	}
	if now := n.seqnoOn("/dev/vdb"); now != seqno {
		t.Errorf("the group has the sequence number %s, had %s", now, seqno)
	}
	if now := must.Get(os.ReadFile(n.journalFile()))(t); !bytes.Equal(now, later) {
		t.Error("the journal was changed")
	}
	checkFilled(t, raw, 0x5a, 8<<20)
	if got := contents(t, dir); got != "kept" {
		t.Errorf("contents %q", got)
	}
	unmount()

	must.Succeed(t, os.WriteFile(n.journalFile(), before, 0o600))
	p = n.start()
	for _, v := range []*lvmdv1.Volume{raw, fs} {
		if got := p.volume(v.GetId()); got.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY || len(got.GetConditions()) > 0 {
			t.Errorf("volume %v is now %v", v, got)
		}
		p.delete(v.GetId())
	}
	waittest.Until(t, "all space is back", func() bool { return p.available() == all && len(n.leftovers()) == 0 })
}
