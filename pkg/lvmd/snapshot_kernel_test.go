//go:build kernel

package lvmd_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// The file system may share its UUID with a mounted one.
func mountBeside(t *testing.T, v *lvmdv1.Volume) (dir string, unmount func()) {
	t.Helper()
	if v.GetFsType() != "xfs" {
		return mount(t, v)
	}
	dir = t.TempDir()
	must.Succeed(t, syscall.Mount(v.GetDevicePath(), dir, "xfs", 0, "nouuid"))
	return dir, func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}
}

func contents(t *testing.T, dir string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "data"))
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

func write(t *testing.T, dir, data string) {
	t.Helper()
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "data"), []byte(data), 0o600))
}

func TestASnapshotOfAMountedFileSystemIsRestoredAndOutlivesItsSource(t *testing.T) {
	for _, fs := range []string{"ext4", "xfs"} {
		t.Run(fs, func(t *testing.T) {
			n := newNode(t)
			n.config = "- {name: thin, default: true, volumeGroup: carve, type: thin, thin: {pool: pool, size: 512Mi, overprovisioning: 10}}\n"
			p := n.start()
			all := p.available()
			v := p.create(create("v", 320<<20, fs))
			dir, unmount := mount(t, v)
			write(t, dir, "before") // not synced: taking the snapshot does that
			resp := must.Get(p.client.CreateSnapshot(t.Context(), &lvmdv1.CreateSnapshotRequest{Name: "s", SourceVolumeId: v.GetId()}))(t)
			s := resp.GetSnapshot()
			write(t, dir, "after")
			ask := create("r", 400<<20, fs)
			ask.Source = &lvmdv1.VolumeSource{SnapshotId: s.GetId()}
			r := p.create(ask)
			clone := create("c", 320<<20, fs)
			clone.Source = &lvmdv1.VolumeSource{VolumeId: v.GetId()}
			c := p.create(clone)
			if r.GetSizeBytes() != 400<<20 || c.GetSizeBytes() != 320<<20 {
				t.Errorf("volumes %v, %v", r, c)
			}
			restored, unmountRestored := mountBeside(t, r)
			cloned, unmountCloned := mountBeside(t, c)
			if got := contents(t, restored) + " " + contents(t, cloned) + " " + contents(t, dir); got != "before after after" {
				t.Errorf("contents %q", got)
			}
			if err := filesystem.Grow(t.Context(), r.GetDevicePath(), restored, filesystem.Type(fs)); err != nil {
				t.Error(err)
			}
			var stat syscall.Statfs_t
			if err := syscall.Statfs(restored, &stat); err != nil || int64(stat.Blocks)*stat.Bsize < 330<<20 {
				t.Errorf("%d bytes, error %v", int64(stat.Blocks)*stat.Bsize, err)
			}
			unmount()
			unmountRestored()
			unmountCloned()
			p.delete(v.GetId())
			if _, err := p.client.DeleteSnapshot(t.Context(), &lvmdv1.DeleteSnapshotRequest{Id: s.GetId()}); err != nil {
				t.Error(err)
			}
			waittest.Until(t, "the sources are gone", func() bool { return len(n.leftovers()) == 3 })
			restored, unmountRestored = mountBeside(t, r)
			if got := contents(t, restored); got != "before" {
				t.Errorf("contents %q", got)
			}
			unmountRestored()
			if err := filesystem.Check(t.Context(), r.GetDevicePath(), filesystem.Type(fs), filesystem.CheckOptions{}); err != nil {
				t.Error(err)
			}
			p.delete(r.GetId())
			p.delete(c.GetId())
			waittest.Until(t, "all space is back", func() bool { return p.available() == all && len(n.leftovers()) == 1 })
		})
	}
}

// slowCopy copies 8 MiB a second. It returns the free space before, a raw volume of 64 MiB, and
// a request for a copy.
func slowCopy(t *testing.T) (p *process, all int64, v *lvmdv1.Volume, ask *lvmdv1.CreateVolumeRequest) {
	t.Helper()
	n := newNode(t)
	n.config = "- {name: local, default: true, volumeGroup: carve, copyRate: 8Mi}\n"
	p = n.start()
	all = p.available()
	v = p.create(create("v", 64<<20, ""))
	fill(t, v, 0x5a)
	ask = create("c", 64<<20, "")
	ask.Source = &lvmdv1.VolumeSource{VolumeId: v.GetId()}
	return p, all, v, ask
}

// A Pod opens its raw volume like this; the kernel allows it despite lvmd's exclusive open.
func TestACopyOfARealRawVolumeThatIsWrittenToMeanwhileFails(t *testing.T) {
	p, all, v, ask := slowCopy(t)
	copied := make(chan error, 1)
	go func() {
		_, err := p.client.CreateVolume(t.Context(), ask)
		copied <- err
	}()
	waittest.Until(t, "some of it is copied", func() bool {
		got, err := p.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Name: "c"})
		return err == nil && got.GetVolume().GetCopiedBytes() > 0
	})
	// This part is copied but not yet durable: the next copy gets it.
	device := must.Get(os.OpenFile(v.GetDevicePath(), os.O_WRONLY, 0))(t)
	must.Get(device.WriteAt(bytes.Repeat([]byte{0x77}, 4096), 0))(t)
	must.Succeed(t, device.Close())
	if err := <-copied; status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "was written to while it was copied") {
		t.Errorf("copying a volume that was written to: %v", err)
	}
	c := p.create(ask)
	got := make([]byte, 4096)
	f := must.Get(os.Open(c.GetDevicePath()))(t)
	must.Get(f.ReadAt(got, 0))(t)
	must.Succeed(t, f.Close())
	if !bytes.Equal(got, bytes.Repeat([]byte{0x77}, 4096)) {
		t.Errorf("the next copy begins with %x, want 77", got[:8])
	}
	p.delete(v.GetId())
	p.delete(c.GetId())
	waittest.Until(t, "all space is back", func() bool { return p.available() == all && len(p.leftovers()) == 0 })
}

// With iostats off, the kernel does not count writes to a device, so lvmd could not detect
// them.
func TestACopyOfARealVolumeWhoseWritesAreNotCountedFails(t *testing.T) {
	p, all, v, ask := slowCopy(t)
	file := fmt.Sprintf("/sys/dev/block/%d:%d/queue/iostats", v.GetDeviceMajor(), v.GetDeviceMinor())
	for _, test := range []struct {
		name string
		// before runs before the copy begins, meanwhile once it is partly copied.
		before, meanwhile func(*testing.T)
		want              string
	}{
		{"not before", func(t *testing.T) { must.Succeed(t, os.WriteFile(file, []byte("0"), 0o600)) }, nil, "was written to"},
		{"not any more", nil, func(t *testing.T) { must.Succeed(t, os.WriteFile(file, []byte("0"), 0o600)) }, "queue/iostats"},
		{"not at all", func(t *testing.T) {
			must.Succeed(t, os.WriteFile(file, []byte("0"), 0o600))
			must.Succeed(t, unix.Mount(file, file, "", unix.MS_BIND, ""))
			t.Cleanup(func() { must.Succeed(t, unix.Unmount(file, 0)) })
			must.Succeed(t, unix.Mount("", file, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		}, nil, "queue/iostats"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.before != nil {
				test.before(t)
			}
			copied := make(chan error, 1)
			go func() {
				_, err := p.client.CreateVolume(t.Context(), ask)
				copied <- err
			}()
			var err error
			waittest.Until(t, "some of it is copied, or none is", func() bool {
				select {
				case err = <-copied:
					return true
				default:
				}
				got, err := p.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Name: "c"})
				return err == nil && got.GetVolume().GetCopiedBytes() > 0
			})
			if err == nil {
				if test.meanwhile != nil {
					test.meanwhile(t)
				}
				writeTo(t, v.GetDevicePath(), 0, bytes.Repeat([]byte{0x77}, 4096))
				err = <-copied
			}
			if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), test.want) {
				t.Errorf("copying a volume that is written to: %v, want one with %q", err, test.want)
			}
			waittest.Until(t, "the copy is undone", func() bool { return p.available() == all-64<<20 })
		})
	}
	p.delete(v.GetId())
	waittest.Until(t, "all space is back", func() bool { return p.available() == all && len(p.leftovers()) == 0 })
}

// A copy of 64 MiB takes eight seconds; its progress is journaled after five.
func TestARealCopyThatIsKilledGoesOnUnlessItsSourceWasWrittenTo(t *testing.T) {
	for name, written := range map[string]bool{"it is left alone": false, "it is written to": true} {
		t.Run(name, func(t *testing.T) {
			p, all, v, ask := slowCopy(t)
			go p.client.CreateVolume(context.Background(), ask)
			const late = 56 << 20
			var unfinished *lvmdv1.Volume
			waittest.Until(t, "most of it is copied", func() bool {
				got, err := p.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Name: "c"})
				unfinished = got.GetVolume()
				return err == nil && unfinished.GetCopiedBytes() >= late
			})
			p.kill()
			if written {
				fill(t, v, 0x77)
			}
			p = p.start()
			if written {
				waittest.Until(t, "the copy is undone", func() bool { return p.available() == all-64<<20 })
			} else if v := p.volume(unfinished.GetId()); v.GetCopiedBytes() < 32<<20 && v.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY {
				t.Errorf("after the restart %d bytes are copied, want at least %d", v.GetCopiedBytes(), 32<<20)
			}
			c := p.create(ask)
			if again := c.GetId() != unfinished.GetId(); again != written {
				t.Errorf("another volume was made: %t, want %t", again, written)
			}
			want := must.Get(os.ReadFile(v.GetDevicePath()))(t)
			if !bytes.Equal(must.Get(os.ReadFile(c.GetDevicePath()))(t), want) {
				t.Error("the copy differs from its source")
			}
			p.delete(v.GetId())
			p.delete(c.GetId())
			waittest.Until(t, "all space is back", func() bool { return p.available() == all && len(p.leftovers()) == 0 })
		})
	}
}

func TestARealThickVolumeIsCopied(t *testing.T) {
	n := newNode(t)
	p := n.start()
	v := p.create(create("v", 64<<20, "ext4"))
	dir, unmount := mount(t, v)
	write(t, dir, "kept")
	ask := create("c", 96<<20, "ext4")
	ask.Source = &lvmdv1.VolumeSource{VolumeId: v.GetId()}
	if _, err := p.client.CreateVolume(t.Context(), ask); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "open or mounted") {
		t.Errorf("copying a mounted volume: %v", err)
	}
	unmount()
	c := p.create(ask)
	if c.GetSizeBytes() != 96<<20 {
		t.Errorf("volume %v", c)
	}
	for _, v := range []*lvmdv1.Volume{v, c} {
		dir, unmount := mount(t, v)
		if got := contents(t, dir); got != "kept" {
			t.Errorf("contents %q", got)
		}
		defer unmount()
	}
	if tags := lvmByHand(t, "lvs", "--noheadings", "-o", "lv_tags", n.group); strings.Contains(tags, "carve.copying") {
		t.Errorf("tags %s", tags)
	}
}
