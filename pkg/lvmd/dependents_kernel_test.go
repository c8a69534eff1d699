//go:build kernel

package lvmd_test

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

const backup = "backup"

func checkBackup(t *testing.T, pattern byte, length int64) {
	t.Helper()
	if attr := strings.TrimSpace(lvmByHand(t, "lvs", "--noheadings", "-o", "lv_attr", "carve/"+backup)); attr[4] != 'a' {
		t.Fatalf("lv_attr of the snapshot is %q: it is not active and valid", attr)
	}
	f := must.Get(os.Open("/dev/carve/" + backup))(t)
	defer f.Close()
	chunk := make([]byte, 1<<20)
	for at := int64(0); at < length; at += int64(len(chunk)) {
		must.Get(io.ReadFull(f, chunk))(t)
		if n := bytes.Count(chunk, []byte{pattern}); n < len(chunk) {
			t.Fatalf("%d of %d bytes of the snapshot from %d on are as they were", n, len(chunk), at)
		}
	}
}

func wantNamed(t *testing.T, what string, err error) {
	t.Helper()
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "carve/"+backup) || strings.Contains(err.Error(), "lvchange -an") {
		t.Errorf("%s: error %v, want one that names carve/%s and what to do", what, err, backup)
	}
}

func TestWhatDependsOnAVolumeOutlivesItsDeletion(t *testing.T) {
	n := thinNode(t, "overprovisioning: 4")
	n.keeps = []string{"carve-pool"}
	n.config += "- {name: thick, volumeGroup: carve}\n"
	p := n.start()
	const size = 16 << 20
	remove := func(string) { lvmByHand(t, "lvremove", "--yes", "carve/"+backup) }
	snapshot := func(volume string) {
		lvmByHand(t, "lvcreate", "--yes", "--snapshot", "--name", backup, "--size", "4M", volume)
	}
	for _, c := range []struct {
		what, class string
		make, undo  func(volume string)
		readable    bool
	}{
		{"a snapshot", "thick", snapshot, remove, true},
		{"a snapshot with a size of a thin volume", "thin", snapshot, remove, true},
		{"a cache", "thick", func(volume string) {
			lvmByHand(t, "lvcreate", "--yes", "--name", backup, "--size", "16M", "carve")
			lvmByHand(t, "lvconvert", "--yes", "--type", "cache", "--cachevol", backup, volume)
		}, func(volume string) {
			lvmByHand(t, "lvconvert", "--yes", "--splitcache", volume)
			remove(volume)
		}, false},
		{"a thin snapshot in another pool", "thick", func(volume string) {
			lvmByHand(t, "lvchange", "--activate", "n", volume)
			lvmByHand(t, "lvchange", "--permission", "r", volume)
			lvmByHand(t, "lvcreate", "--yes", "--snapshot", "--name", backup, "--setactivationskip", "n", "--thinpool", "carve/carve-pool", volume)
		}, func(volume string) {
			remove(volume)
			lvmByHand(t, "lvchange", "--permission", "rw", volume)
			lvmByHand(t, "lvchange", "--activate", "y", volume)
		}, true},
	} {
		t.Log(c.what)
		v := p.create(inClass(create("pvc", size, ""), c.class))
		fill(t, v, 0x5a)
		c.make("carve/" + v.GetId())
		waittest.Until(t, "a condition names it", func() bool { return strings.Contains(p.volume(v.GetId()).String(), "carve/"+backup) })
		_, err := p.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
		wantNamed(t, "the deletion", err)
		_, err = p.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 2 * size})
		wantNamed(t, "the growth", err)
		if c.readable {
			checkBackup(t, 0x5a, size)
		}
		if t.Failed() {
			t.FailNow()
		}
		c.undo("carve/" + v.GetId())
		waittest.Until(t, "the condition is over", func() bool { return p.conditions() == "" })
		checkFilled(t, v, 0x5a, size)
		p.delete(v.GetId())
		waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 })
	}
}

// The deletion comes before lvmd's scan.
func TestASnapshotThatIsASecondOldIsSeenByADeletion(t *testing.T) {
	n := newNode(t)
	p := n.start()
	const size = 16 << 20
	v := p.create(create("pvc", size, ""))
	fill(t, v, 0x5a)
	lvmByHand(t, "lvcreate", "--yes", "--snapshot", "--name", backup, "--size", "4M", "carve/"+v.GetId())
	_, err := p.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
	wantNamed(t, "the deletion", err)
	checkBackup(t, 0x5a, size)
	lvmByHand(t, "lvremove", "--yes", "carve/"+backup)
	lvmByHand(t, "lvcreate", "--yes", "--snapshot", "--name", backup, "--size", "4M", "carve/"+v.GetId())
	_, err = p.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 2 * size})
	wantNamed(t, "the growth", err)
	lvmByHand(t, "lvremove", "--yes", "carve/"+backup)
	waittest.Until(t, "it can be deleted", func() bool {
		_, err := p.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
		return err == nil
	})
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 })
}

// The snapshot is created after lvmd acknowledged the deletion, before it wipes the volume or
// before it removes it.
func TestASnapshotThatIsMadeAfterTheDeletionOutlivesItsOrigin(t *testing.T) {
	n := newNode(t)
	const size = 16 << 20
	for place, pattern := range map[string]byte{"delete: tombstone written": 0x5a, "delete: wiped": 0} {
		p := n.startCrashingAt(place, 1)
		all := p.available()
		v := p.create(create("pvc", size, ""))
		fill(t, v, 0x5a)
		_, _ = p.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
		waittest.Until(t, "lvmd has ended", func() bool { return p.hasEnded(time.Millisecond) })
		lvmByHand(t, "lvcreate", "--yes", "--snapshot", "--name", backup, "--size", "4M", "carve/"+v.GetId())
		p = n.start()
		waittest.Until(t, place+": a condition names both", func() bool {
			class := p.state().GetClasses()[0].GetConditions()
			return len(class) == 1 && strings.Contains(class[0].GetMessage(), v.GetId()) && strings.Contains(class[0].GetMessage(), "carve/"+backup)
		})
		checkBackup(t, pattern, size)
		lvmByHand(t, "lvremove", "--yes", "carve/"+backup)
		waittest.Until(t, place+": the deletion goes on", func() bool { return len(n.leftovers()) == 0 && p.available() == all })
		if c := p.state().GetClasses()[0].GetConditions(); len(c) > 0 {
			t.Errorf("%s: conditions %v when all is over", place, c)
		}
		p.kill()
	}
}
