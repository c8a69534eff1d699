//go:build kernel

package mount_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	mountutils "k8s.io/mount-utils"
	utilexec "k8s.io/utils/exec"

	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/must"
)

// TestTheKubeletSeesTheSame compares with the functions that the kubelet uses.
func TestTheKubeletSeesTheSame(t *testing.T) {
	kubelet := mountutils.NewWithoutSystemd("")
	for _, fsType := range []filesystem.Type{filesystem.Ext4, filesystem.XFS, filesystem.Btrfs} {
		t.Run(string(fsType), func(t *testing.T) {
			formatDisk(t, fsType)
			formatter := mountutils.NewSafeFormatAndMount(kubelet, utilexec.New())
			if got, err := formatter.GetDiskFormat(disk); err != nil || got != string(fsType) {
				t.Errorf("the kubelet sees %q on the disk, %v", got, err)
			}
			dir, system := t.TempDir(), mount.System{}
			staged, published, readOnly, none := filepath.Join(dir, "staged"), filepath.Join(dir, "published"), filepath.Join(dir, "read-only"), filepath.Join(dir, "none")
			for _, path := range []string{staged, published, readOnly, none} {
				must.Succeed(t, os.Mkdir(path, 0o700))
			}
			must.Succeed(t, system.Mount(mount.Source{Node: disk}, staged, string(fsType), []string{"noatime", "nosuid"}))
			must.Succeed(t, system.Bind(staged, published, false))
			must.Succeed(t, system.Bind(staged, readOnly, true))
			for path, want := range map[string]bool{staged: true, published: true, readOnly: true, none: false} {
				if got, err := kubelet.IsMountPoint(path); err != nil || got != want {
					t.Errorf("%s is a mount point for the kubelet: %t, %v", filepath.Base(path), got, err)
				}
				if at, err := system.At(path); err != nil || at.Mounted != want {
					t.Errorf("%s is mounted: %+v, %v", filepath.Base(path), at, err)
				}
			}
			references := must.Get(kubelet.GetMountRefs(staged))(t)
			if slices.Sort(references); !slices.Equal(references, []string{published, readOnly, staged}) && !slices.Equal(references, []string{published, readOnly}) {
				t.Errorf("for the kubelet the staged one is mounted at %q, too", references)
			}
			table := must.Get(mountutils.ParseMountInfo("/proc/self/mountinfo"))(t)
			for _, p := range must.Get(system.Below(dir))(t) {
				i := slices.IndexFunc(table, func(m mountutils.MountInfo) bool { return m.MountPoint == p.Path })
				if i < 0 {
					t.Errorf("%s is not in the kubelet's table", p.Path)
					continue
				}
				if m := table[i]; m.Root != p.Root || m.FsType != p.FSType || !slices.Equal(m.MountOptions, p.Options) || !slices.Equal(m.SuperOptions, p.FSOptions) {
					t.Errorf("the kubelet reads %+v, the plugin %+v", m, p)
				}
			}
			for _, path := range []string{readOnly, published, staged} {
				must.Succeed(t, system.Unmount(path))
			}
		})
	}
}
