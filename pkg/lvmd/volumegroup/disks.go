package volumegroup

import (
	"slices"
	"strings"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
)

// Disks names the set of disks that volumes of a group lie on, by the kernel's tables, without I/O.
// Volumes with equal names wait for the same disks. A volume without a table counts as on a disk of its
// own.
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
