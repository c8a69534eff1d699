package inventory

import (
	"fmt"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
)

// A logical volume that is not ours may depend on one of ours, as an administrator's snapshot does:
// writes to the volume fill the snapshot, and LVM removes it with the volume. Therefore lvmd
// neither wipes, unmaps, removes nor grows such a volume. Scans find dependents. Since one may be
// created after a scan, the wipe also asks the kernel before each chunk, see
// volumegroup.CheckDependents, and LVM checks again at removal, except for a leg split off a
// mirror.
//
// Tombstones with dependents are marked nevertheless: a tag harms no dependent, and without it a
// node that loses its journal would get the volume back. A thin snapshot in the volume's own pool
// is no dependent: the pool counts references to blocks, and keeps shared ones.

type dependents []lvm.Dependent

func (d dependents) describe(group string) string {
	var all []string
	for _, one := range d {
		what := "a logical volume"
		if one.Name != "" {
			what = "logical volume " + group + "/" + one.Name
		}
		all = append(all, fmt.Sprintf("%s %s (to end that: %s)", what, one.Is, one.Remedy))
	}
	return examples(all)
}

func (d dependents) refuse(group, id string) error {
	if len(d) == 0 {
		return nil
	}
	return apierror.HasDependents(id, d.describe(group))
}

// CheckDependents fails if, by the last scan, a logical volume depends on v.
func CheckDependents(v *Volume) error {
	m := v.group.m
	m.lock()
	defer m.unlock()
	return v.dependents.refuse(v.group.name, v.rec.ID)
}
