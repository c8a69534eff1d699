//go:build kernel

package lvmd_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestVolumesAreMountedGrownDeletedAndLeaveNothing(t *testing.T) {
	n := newNode(t)
	p := n.start()
	all := p.available()
	for _, fs := range []string{"ext4", "xfs"} {
		t.Run(fs, func(t *testing.T) {
			v := p.create(create("pvc-"+fs, 400<<20, fs))
			if v.GetSizeBytes() != 400<<20 || v.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY {
				t.Errorf("volume %v", v)
			}
			if got := p.available(); got != all-400<<20 {
				t.Errorf("available %d, want %d", got, all-400<<20)
			}
			dir, unmount := mount(t, v)
			file := filepath.Join(dir, "data")
			must.Succeed(t, os.WriteFile(file, []byte("kept"), 0o600))
			_, err := p.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
			if status.Code(err) != codes.FailedPrecondition {
				t.Errorf("deleting a mounted volume: %v", err)
			}
			resp, err := p.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 500 << 20})
			if err != nil || resp.GetVolume().GetSizeBytes() != 500<<20 {
				t.Fatalf("%v, error %v", resp, err)
			}
			if err := filesystem.Grow(t.Context(), v.GetDevicePath(), dir, filesystem.Type(fs)); err != nil {
				t.Error(err)
			}
			if b, err := os.ReadFile(file); err != nil || string(b) != "kept" {
				t.Errorf("%q, error %v", b, err)
			}
			unmount()
			p.delete(v.GetId())
			waittest.Until(t, "the space is back", func() bool { return p.available() == all })
		})
	}
	if left := n.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// The kernel's open count decides, not the nodes in /dev.
func TestAMountedVolumeIsNotDeletedWhateverBecameOfItsNodes(t *testing.T) {
	n := newNode(t)
	p := n.start()
	for name, change := range map[string]func(path string) error{
		"missing": os.Remove,
		"stale": func(path string) error {
			// A disk of the machine itself.
			return errors.Join(os.Remove(path), os.Symlink("/dev/vdc", path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := p.create(create("pvc-"+name, 32<<20, "ext4"))
			dir, unmount := mount(t, v)
			file := filepath.Join(dir, "data")
			must.Succeed(t, os.WriteFile(file, []byte("kept"), 0o600))
			for _, path := range []string{v.GetDevicePath(), "/dev/mapper/" + n.group + "-" + v.GetId()} {
				must.Succeed(t, change(path))
			}
			_, err := p.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
			if status.Code(err) != codes.FailedPrecondition {
				t.Errorf("deleting a mounted volume: want FailedPrecondition, got %v", err)
			}
			if b, err := os.ReadFile(file); err != nil || string(b) != "kept" {
				t.Errorf("the file holds %q, error %v", b, err)
			}
			unmount()
			p.delete(v.GetId())
			waittest.Until(t, "the volume is gone", func() bool { return len(n.leftovers()) == 0 })
		})
	}
}

func TestAnOpenRawVolumeIsNotDeleted(t *testing.T) {
	n := newNode(t)
	p := n.start()
	v := p.create(create("pvc-1", 8<<20, ""))
	f, err := os.Open(v.GetDevicePath())
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("error %v", err)
	}
	f.Close()
	p.delete(v.GetId())
	waittest.Until(t, "the volume is gone", func() bool { return len(n.leftovers()) == 0 })
}

func TestTheMaximumFitsAndAByteMoreDoesNot(t *testing.T) {
	n := newNode(t, "/dev/vdb", "/dev/vdc")
	n.config = "- {name: local, default: true, volumeGroup: carve, reserve: 45%}\n"
	p := n.start()
	most := p.state().GetClasses()[0].GetMaximumVolumeSizeBytes()
	_, err := p.client.CreateVolume(t.Context(), create("pvc-1", most+1, ""))
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("error %v", err)
	}
	v := p.create(create("pvc-1", most, ""))
	if v.GetSizeBytes() != most || p.available() != 0 {
		t.Errorf("size %d of %d, %d left", v.GetSizeBytes(), most, p.available())
	}
}

func TestVolumesComeBackAfterAReboot(t *testing.T) {
	n := newNode(t)
	p := n.start()
	v := p.create(create("pvc-1", 64<<20, "ext4"))
	dir, unmount := mount(t, v)
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "data"), []byte("kept"), 0o600))
	unmount()
	if err := p.stop(); err != nil {
		t.Errorf("stopped with %v", err)
	}
	lvmByHand(t, "vgchange", "--activate", "n", n.group)
	if _, err := os.Stat(v.GetDevicePath()); err == nil {
		t.Fatal("the device is still there")
	}
	p = n.start()
	again := p.create(create("pvc-1", 64<<20, "ext4"))
	if again.GetId() != v.GetId() || len(again.GetConditions()) > 0 {
		t.Errorf("volume %v", again)
	}
	dir, _ = mount(t, again)
	if b, err := os.ReadFile(filepath.Join(dir, "data")); err != nil || string(b) != "kept" {
		t.Errorf("%q, error %v", b, err)
	}
}

func TestALostOrDamagedJournalIsRebuiltFromTags(t *testing.T) {
	n := newNode(t, "/dev/vdb", "/dev/vdc")
	n.config += "- {name: raid1, volumeGroup: carve, type: raid1}\n" +
		"- {name: thin, volumeGroup: carve, type: thin, thin: {pool: carve-pool, size: 64Mi, overprovisioning: 4}}\n"
	p := n.start()
	made := map[string]*lvmdv1.CreateVolumeRequest{} // by id
	make := func(r *lvmdv1.CreateVolumeRequest) *lvmdv1.Volume {
		v := p.create(r)
		made[v.GetId()] = r
		return v
	}
	make(create("pvc-fs", 64<<20, "ext4"))
	make(create("pvc-raw", 8<<20, ""))
	make(inClass(create("pvc-mirrored", 8<<20, ""), "raid1"))
	thin := make(inClass(create("pvc-thin", 16<<20, ""), "thin"))
	fill(t, thin, 0x5a)
	ask := &lvmdv1.CreateSnapshotRequest{Name: "s", SourceVolumeId: thin.GetId()}
	snapshot := p.snapshotAgain(ask)
	restore := inClass(create("pvc-restored", 16<<20, ""), "thin")
	restore.Source = &lvmdv1.VolumeSource{SnapshotId: snapshot.GetId()}
	restored := make(restore)
	waittest.Until(t, "the mirror is in sync", func() bool { return p.conditions() == "" })
	freeSpace := func() (all []int64) {
		for _, c := range p.state().GetClasses() {
			all = append(all, c.GetAvailableBytes())
		}
		return all
	}
	var free []int64
	waittest.Until(t, "lvmd has seen what was written to the pool", func() bool {
		free = freeSpace()
		// 32 MiB below the threshold of 80%, four times.
		return free[2] == 128<<20
	})
	path := filepath.Join(n.dir, "state", "journal.db")
	for _, c := range []struct {
		name  string
		spoil func() error
	}{
		{"lost", func() error { return os.Remove(path) }},
		{"garbage", func() error { return os.WriteFile(path, []byte(strings.Repeat("garbage!", 10000)), 0o600) }},
		{"cut off", func() error { return os.Truncate(path, 5000) }},
		{"empty", func() error { return os.Truncate(path, 0) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.kill()
			must.Succeed(t, c.spoil())
			p = n.start()
			if !strings.Contains(p.log.String(), "rebuilt from the volumes' tags") {
				t.Errorf("the log does not say it:\n%s", p.log)
			}
			for id, r := range made {
				got := p.create(r)
				if got.GetId() != id || got.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY || len(got.GetConditions()) > 0 {
					t.Errorf("volume %v, want id %s", got, id)
				}
			}
			if got := p.snapshotAgain(ask); got.GetId() != snapshot.GetId() || !got.GetReady() || got.GetSizeBytes() != snapshot.GetSizeBytes() {
				t.Errorf("snapshot %v, want %v", got, snapshot)
			}
			checkFilled(t, restored, 0x5a, 16<<20)
			if got := freeSpace(); !slices.Equal(got, free) {
				t.Errorf("%d bytes are available, were %d", got, free)
			}
			_, err := p.client.CreateVolume(t.Context(), create("pvc-raw", 12<<20, ""))
			if status.Code(err) != codes.AlreadyExists {
				t.Errorf("another request of the same name: %v", err)
			}
		})
	}
}

func TestASecondLvmdRefusesToStart(t *testing.T) {
	n := newNode(t)
	p := n.start()
	elsewhere, withoutLocks := t.TempDir(), t.TempDir()
	for _, c := range []struct {
		more []string // overrides an earlier equal flag
		want string
	}{
		{nil, "another lvmd is running with the state directory"},
		{[]string{"--state-dir", elsewhere}, "another lvmd is running with LVM's lock directory"},
		{[]string{"--state-dir", elsewhere, "--socket", filepath.Join(elsewhere, "sock")}, "another lvmd is running with LVM's lock directory"},
		{[]string{"--state-dir", elsewhere, "--lock-dir", withoutLocks}, "answers on it"},
	} {
		cmd := n.command()
		cmd.Args = append(cmd.Args, c.more...)
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.want) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("with %q: error %v, output %s, want %s", c.more, err, out, c.want)
		}
	}
	if !p.serving() {
		t.Error("the first one is disturbed")
	}
}

func TestStreamsEndWhenLvmdStops(t *testing.T) {
	n := newNode(t)
	p := n.start()
	w := must.Get(p.client.Watch(t.Context(), &lvmdv1.WatchRequest{}))(t)
	must.Get(w.Recv())(t)
	if err := p.stop(); err != nil {
		t.Errorf("stopped with %v", err)
	}
	// A stream that is cut off after the calls' grace period ends with the connection's error.
	if _, err := w.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "lvmd is stopping") {
		t.Errorf("the stream ended with %v, want lvmd's own word that it stops", err)
	}
}

// lvmd scans once per change, or twice for a new disk, and never without a change.
func TestAnAdministratorsChangesAreSeen(t *testing.T) {
	n := newNode(t)
	n.debug = true
	p := n.start()
	all := p.available()
	for _, c := range []struct {
		does     []string
		what     string
		happened func(free int64) bool
	}{
		{[]string{"lvcreate", "--yes", "--size", "100m", "--name", "admins", n.group}, "the space shrinks",
			func(free int64) bool { return free == all-100<<20 }},
		{[]string{"vgextend", "--yes", n.group, "/dev/vdc"}, "the space grows", func(free int64) bool { return free > all }},
		{[]string{"lvremove", "--yes", n.group + "/admins"}, "the space grows again", func(free int64) bool { return free > 2*all-100<<20 }},
		{[]string{"vgreduce", n.group, "/dev/vdc"}, "all is as before", func(free int64) bool { return free == all }},
	} {
		before := p.commands()
		lvmByHand(t, c.does...)
		waittest.Until(t, c.what, func() bool { return c.happened(p.available()) })
		// The log, in which commands are counted, may lag behind the report.
		waittest.Until(t, "lvmd's log has the command by which it saw that", func() bool { return p.commands() > before })
		if ran := p.commands() - before; ran > 4 {
			t.Errorf("%v: lvmd ran %d commands to see it, want 1 to 4", c.does, ran)
		}
	}
	if strings.Contains(p.log.String(), "whether others change the group") {
		t.Errorf("lvmd cannot see from the disks whether others change the group:\n%s", p.log)
	}
	lvmByHand(t, "pvremove", "/dev/vdc")
}

func TestAHangingLVMIsReportedAndRecoveredFrom(t *testing.T) {
	n := newNode(t)
	hang := n.hangable()
	n.timeout = 5 * time.Second
	p := n.start()
	// On a slow machine, a command may take longer than the deadline.
	var v *lvmdv1.Volume
	made := func(name string) {
		t.Helper()
		waittest.Succeeds(t, name+" is made", func() error {
			resp, err := p.client.CreateVolume(t.Context(), create(name, 8<<20, ""))
			v = resp.GetVolume()
			return err
		})
	}
	made("pvc-1")
	must.Succeed(t, os.WriteFile(hang, nil, 0o600))
	_, err := p.client.CreateVolume(t.Context(), create("pvc-2", 8<<20, ""))
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("error %v", err)
	}
	if p.serving() {
		t.Error("the health service says SERVING")
	}
	if _, err := p.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Id: v.GetId()}); err != nil {
		t.Errorf("a read fails: %v", err)
	}
	must.Succeed(t, os.Remove(hang))
	waittest.Until(t, "the health service says SERVING", p.serving)
	made("pvc-2")
}
