package volumegroup

import (
	"slices"
	"strings"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
)

// Disks is one name for the set of disks that volumes of a group lie on, as the kernel's tables say: what
// waits for one of them waits with others on the same disks. One that is not active, or of which the device
// has no table, counts as on disks of its own. It reads nothing from the disks.
func Disks(l lvm.Groups, volumes ...*inventory.Volume) string {
	var on []string
	for _, v := range volumes {
		group := v.Group().Name()
		if pool, _ := inventory.LiesIn(v); pool != "" {
			on = append(on, "pool "+group+"/"+pool)
			continue
		}
		segments, _ := l.Mapping(group, v.ID())
		known := len(on)
		for _, s := range segments {
			for _, a := range s.Areas {
				on = append(on, "disk "+group+" "+a.Device)
			}
		}
		if len(on) == known {
			on = append(on, "volume "+group+"/"+v.ID())
		}
	}
	slices.Sort(on)
	return strings.Join(slices.Compact(on), ", ")
}
