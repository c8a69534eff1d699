package inventory

import (
	"fmt"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
)

// A logical volume that is not ours may depend on one of ours, as an administrator's snapshot does:
// what is written to the volume fills the snapshot, and LVM removes it with the volume. Therefore
// nothing of such a volume is wiped, unmapped or removed, and it does not grow. What depends a scan
// finds, but it may be made after that: so the kernel is asked for each chunk that is wiped or
// unmapped, see volumegroup.CheckDependents, and LVM decides again when it removes the volume, but for a
// leg that was split off a mirror.
//
// A tombstone is marked all the same: a tag harms no dependent, and without it a node that loses its
// journal would have the volume back. A thin snapshot in the volume's own pool is no dependent: the
// pool counts the users of a block, so that it keeps what the volume is unmapped from or removed with.

// dependents are what depends on one volume.
type dependents []lvm.Dependent

// describe says what depends on a volume of a group, and what to do about it.
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

// refuse is an error if something depends on the volume of an id.
func (d dependents) refuse(group, id string) error {
	if len(d) == 0 {
		return nil
	}
	return apierror.HasDependents(id, d.describe(group))
}

// CheckDependents is an error while the last scan found a logical volume that depends on a volume.
func CheckDependents(v *Volume) error {
	m := v.group.m
	m.lock()
	defer m.unlock()
	return v.dependents.refuse(v.group.name, v.rec.ID)
}
