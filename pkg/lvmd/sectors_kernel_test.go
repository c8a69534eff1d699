//go:build kernel

package lvmd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// The growth would leave a file system that the kernel cannot mount any more.
func TestGrowthOntoLargerSectors(t *testing.T) {
	n := newNode(t)
	large := largeSectors(t)
	p := n.start()
	v := p.create(create("pvc-grows", 320<<20, "xfs"))
	lvmByHand(t, "pvcreate", large)
	byHand(t, "lvm", "vgextend", n.group, large, "--config", handConfig+" devices { allow_mixed_block_sizes=1 }")
	grow := func() error {
		_, err := p.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 400 << 20})
		return err
	}
	waittest.Until(t, "the growth is refused", func() bool {
		err := grow()
		return status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "pvchange --allocatable n "+large)
	})
	lvmByHand(t, "pvchange", "--allocatable", "n", large)
	waittest.Until(t, "it grows on the other disk", func() bool { return grow() == nil })
	_, unmount := mount(t, v)
	unmount()
	p.delete(v.GetId())
	lvmByHand(t, "vgreduce", n.group, large)
}

func largeSectors(t *testing.T) (disk string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "disk")
	must.Succeed(t, os.WriteFile(file, nil, 0o600))
	must.Succeed(t, os.Truncate(file, 512<<20))
	disk = strings.TrimSpace(byHand(t, "losetup", "--find", "--show", "--sector-size", "4096", file))
	t.Cleanup(func() { byHand(t, "losetup", "--detach", disk) })
	return disk
}

// The disks' sectors of 4096 bytes do not allow the requested file systems.
func TestBlocksSmallerThanTheSectorsOfTheDisks(t *testing.T) {
	n := newNode(t, largeSectors(t))
	p := n.start()
	all := p.available()
	for _, c := range []struct {
		fsType   string
		settings map[string]string
	}{
		{"ext4", map[string]string{"block-size": "1Ki"}},
		{"xfs", map[string]string{"block-size": "1Ki", "inode-size": "512"}},
		{"xfs", map[string]string{"block-size": "2048"}},
	} {
		r := create("pvc-"+c.fsType, 320<<20, c.fsType)
		r.FsSettings = c.settings
		_, err := p.client.CreateVolume(t.Context(), r)
		if message := status.Convert(err).Message(); status.Code(err) != codes.InvalidArgument ||
			!strings.Contains(message, "carve.csi.local/mkfs-block-size") || !strings.Contains(message, "sectors of 4096 bytes: allowed are 4096") {
			t.Errorf("%s with %v: %v", c.fsType, c.settings, err)
		}
		if left := strings.TrimSpace(lvmByHand(t, "lvs", "--noheadings", "-o", "lv_name", n.group)); left != "" {
			t.Errorf("%s with %v: made was %q", c.fsType, c.settings, left)
		}
	}
	if strings.Contains(p.log.String(), "lvcreate") {
		t.Errorf("a volume was made that cannot have its file system:\n%s", p.log)
	}
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		v := p.create(create("pvc-"+fsType, 320<<20, fsType))
		p.delete(v.GetId())
		waittest.Until(t, "the space is back", func() bool { return p.available() == all })
	}
}
