package volumegroup

import (
	"slices"
	"strings"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
)

// Disks is one name for the set of disks that a volume lies on, as the kernel's tables say: what
// waits for one of them waits with others on the same disks. One that is not active counts as on
// disks of its own. It reads nothing from the disks.
func Disks(l lvm.Groups, v *inventory.Volume) string {
	group := v.Group().Name()
	if pool := inventory.PoolName(v); pool != "" {
		return "pool " + group + "/" + pool
	}
	segments, err := l.Mapping(group, v.ID())
	if err != nil {
		return "volume " + group + "/" + v.ID()
	}
	var disks []string
	for _, s := range segments {
		for _, a := range s.Areas {
			disks = append(disks, a.Device)
		}
	}
	slices.Sort(disks)
	return "disks " + group + " " + strings.Join(slices.Compact(disks), " ")
}
