//go:build kernel

package lvmd_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// faultyStart offsets a faulty disk on the disk below, in sectors, so that LVM does not find
// one physical volume on both.
const faultyStart = 8192

type faulty struct {
	t       testing.TB
	name    string
	sectors int64
	disk    string
}

func newFaulty(t testing.TB, disk string) *faulty {
	t.Helper()
	file := must.Get(os.Open(disk))(t)
	defer file.Close()
	size := must.Get(file.Seek(0, 2))(t)
	f := &faulty{t: t, name: "carve-faulty", sectors: size/512 - faultyStart, disk: disk}
	byHand(t, "dmsetup", "create", f.name, "--table", f.table(f.linear()))
	t.Cleanup(func() { byHand(t, "dmsetup", "remove", "--retry", f.name) })
	return f
}

func (f *faulty) path() string { return "/dev/mapper/" + f.name }

func (f *faulty) table(target string) string { return fmt.Sprintf("0 %d %s", f.sectors, target) }

func (f *faulty) set(target string) {
	f.t.Helper()
	must.Succeed(f.t, setTable(f.name, f.table(target)))
}

func setTable(name, table string) error {
	for _, args := range [][]string{
		{"suspend", "--noflush", "--nolockfs", "--noudevsync", name}, {"load", name, "--table", table}, {"resume", name},
	} {
		cmd := exec.Command("dmsetup", args...)
		cmd.Env = append(os.Environ(), "DM_DISABLE_UDEV=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("dmsetup %v: %w: %s", args, err, out)
		}
	}
	return nil
}

func (f *faulty) fail() { f.set("error") }
func (f *faulty) work() { f.set(f.linear()) }

func (f *faulty) linear() string { return fmt.Sprintf("linear %s %d", f.disk, faultyStart) }

// refuse makes eight sectors fail from the given one on.
func (f *faulty) refuse(from int64) {
	f.t.Helper()
	file := filepath.Join(f.t.TempDir(), "table")
	table := fmt.Sprintf("0 %d linear %s %d\n%d 8 error\n%d %d linear %s %d\n",
		from, f.disk, faultyStart, from, from+8, f.sectors-from-8, f.disk, faultyStart+from+8)
	must.Succeed(f.t, os.WriteFile(file, []byte(table), 0o600))
	for _, args := range [][]string{
		{"suspend", "--noflush", "--nolockfs", "--noudevsync", f.name}, {"load", f.name, file}, {"resume", f.name},
	} {
		byHand(f.t, "dmsetup", args...)
	}
}

func TestSectorThatTakesNoWriteKeepsNoSpace(t *testing.T) {
	disk := newFaulty(t, "/dev/vdc")
	n := newNode(t, disk.path())
	p := n.start()
	all := p.available()
	v := p.create(create("pvc-1", 200<<20, "ext4"))
	disk.refuse((1<<20 + 100<<20) / 512)
	t.Cleanup(disk.work)
	p.delete(v.GetId())
	waittest.Until(t, "the class says so", func() bool {
		for _, c := range p.state().GetClasses()[0].GetConditions() {
			if c.GetType() == "DeletionWaits" && strings.Contains(c.GetMessage(), v.GetId()) {
				return true
			}
		}
		return false
	})
	waittest.Until(t, "the space is back", func() bool {
		return p.available() == all && len(p.state().GetClasses()[0].GetConditions()) == 0
	})
	if got := strings.Count(p.log.String(), "keep what they hold"); got != 1 {
		t.Errorf("the log has the skipped part %d times, want once", got)
	}
}

func TestAGroupWhoseDiskFailsSaysSoAndOthersServe(t *testing.T) {
	disk := newFaulty(t, "/dev/vdc")
	n := newNode(t)
	lvmByHand(t, "vgcreate", "--yes", "other", disk.path())
	t.Cleanup(func() {
		lvmByHand(t, "vgremove", "--yes", "--force", "other")
		lvmByHand(t, "pvremove", "--yes", disk.path())
	})
	n.config += "- {name: other, volumeGroup: other}\n"
	p := n.start()
	ask := create("pvc-other", 8<<20, "")
	ask.DeviceClass = "other"
	v := p.create(ask)

	disk.fail()
	t.Cleanup(disk.work)
	class := func() *lvmdv1.DeviceClass { return p.state().GetClasses()[1] }
	waittest.Until(t, "the class has no free space and a condition", func() bool {
		return class().GetAvailableBytes() == 0 && len(class().GetConditions()) > 0
	})
	ask.Name = "pvc-more"
	if _, err := p.client.CreateVolume(t.Context(), ask); status.Code(err) != codes.Unavailable {
		t.Errorf("a create there: %v", err)
	}
	for _, volume := range p.state().GetVolumes() {
		if volume.GetId() == v.GetId() && len(volume.GetConditions()) == 0 {
			t.Errorf("volume %v", volume)
		}
	}
	local := p.create(create("pvc-local", 8<<20, "ext4"))
	p.delete(local.GetId())
	if !p.serving() {
		t.Error("lvmd says it does not serve")
	}

	disk.work()
	waittest.Until(t, "the class is well", func() bool { return class().GetAvailableBytes() > 0 && len(class().GetConditions()) == 0 })
	p.create(ask)
	p.delete(v.GetId())
	resp := must.Get(p.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Name: "pvc-more"}))(t)
	p.delete(resp.GetVolume().GetId())
	waittest.Until(t, "nothing is left", func() bool {
		return strings.TrimSpace(lvmByHand(t, "lvs", "--noheadings", "other")) == ""
	})
}

func TestADeletionWaitsWhileADiskOfTheGroupIsAway(t *testing.T) {
	disk := newFaulty(t, "/dev/vdc")
	n := newNode(t, "/dev/vdb", disk.path())
	p := n.start()
	all := p.available()
	v := p.create(create("pvc-1", 8<<20, ""))
	disk.fail()
	t.Cleanup(disk.work)
	waittest.Until(t, "the class has a condition", func() bool { return len(p.state().GetClasses()[0].GetConditions()) > 0 })
	p.delete(v.GetId())
	disk.work()
	waittest.Until(t, "all is well, without help", func() bool { return p.available() == all })
	if left := n.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestAFullDiskUnderTheJournalIsAnErrorAndNoLie(t *testing.T) {
	n := newNode(t)
	state := n.dir + "/state"
	must.Succeed(t, os.Mkdir(state, 0o700))
	must.Succeed(t, unix.Mount("tmpfs", state, "tmpfs", 0, "size=512k"))
	t.Cleanup(func() {
		if err := unix.Unmount(state, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	p := n.start()
	all := p.available()
	v := p.create(create("pvc-1", 8<<20, ""))
	ballast, err := os.Create(state + "/ballast")
	if err != nil {
		t.Fatal(err)
	}
	for chunk := make([]byte, 4096); ; {
		if _, err := ballast.Write(chunk); err != nil {
			break
		}
	}
	ballast.Close()
	made := 0
	for ; made < 400; made++ {
		if _, err = p.client.CreateVolume(t.Context(), create(fmt.Sprintf("pvc-full-%d", made), 4<<20, "")); err != nil {
			break
		}
	}
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "journal") {
		t.Errorf("after %d volumes: %v", made, err)
	}
	if got := len(p.state().GetVolumes()); got != made+1 || p.available() != all-int64(made+2)*4<<20 {
		t.Errorf("%d volumes, %d bytes taken; %d were made", got, all-p.available(), made+1)
	}
	// Other requests succeed or fail because of the journal, also after a restart.
	refused := func(what string, err error) bool {
		if err != nil && (status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "journal")) {
			t.Errorf("%s: %v, want a word of the journal", what, err)
		}
		return err != nil
	}
	size, count := int64(16<<20), made+1
	if _, err := p.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: size}); refused("expand", err) {
		size = 8 << 20
	}
	if _, err := p.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Name: "pvc-full-0"}); !refused("delete", err) {
		count--
	}
	waittest.Until(t, "what was deleted is free", func() bool { return p.available() == all-size-int64(count-1)*4<<20 })
	p.kill()
	p = n.start()
	if strings.Contains(p.log.String(), "journal") {
		t.Errorf("the journal is taken for damaged:\n%s", p.log)
	}
	if got := len(p.state().GetVolumes()); got != count || p.available() != all-size-int64(count-1)*4<<20 {
		t.Errorf("after a restart %d volumes, %d bytes taken; want %d, of which one has %d", got, all-p.available(), count, size)
	}
	must.Succeed(t, os.Remove(state+"/ballast"))
	p.create(create(fmt.Sprintf("pvc-full-%d", made), 4<<20, ""))
	p.delete(v.GetId())
	for _, v := range p.state().GetVolumes() {
		p.delete(v.GetId())
	}
	waittest.Until(t, "all is free", func() bool { return p.available() == all })
}
