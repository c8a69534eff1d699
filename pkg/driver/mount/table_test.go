package mount

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	mountutils "k8s.io/mount-utils"

	"github.com/carve-csi/carve/pkg/must"
)

// table has a path with a space, and a tmpfs mounted without a source.
const table = `36 35 98:0 / /mnt/with\040space rw,noatime shared:1 - ext4 /dev/sda rw,errors=continue
38 35 0:23 / /mnt/none rw,relatime - tmpfs  rw,size=1k
`

// TestMountTablesOfAnyNodeAreRead has both reasons against mount-utils here.
// When it fails, mount-utils may do.
func TestMountTablesOfAnyNodeAreRead(t *testing.T) {
	mounts := must.Get(mountinfo.GetMountsFromReader(strings.NewReader(table), nil))(t)
	if len(mounts) != 2 || mounts[0].Mountpoint != "/mnt/with space" || mounts[1].Mountpoint != "/mnt/none" || mounts[1].FSType != "tmpfs" {
		t.Errorf("read are %+v", mounts)
	}
	file := filepath.Join(t.TempDir(), "mountinfo")
	must.Succeed(t, os.WriteFile(file, []byte(table), 0o600))
	if got, err := mountutils.ParseMountInfo(file); err == nil {
		t.Errorf("mount-utils reads a mount without a source: %+v", got)
	}
	escaped, _, _ := strings.Cut(table, "\n")
	must.Succeed(t, os.WriteFile(file, []byte(escaped), 0o600))
	if got, err := mountutils.ParseMountInfo(file); err != nil || len(got) != 1 || got[0].MountPoint == "/mnt/with space" {
		t.Errorf("mount-utils reads an escaped path: %+v, %v", got, err)
	}
}
