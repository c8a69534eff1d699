package lvmfake

import (
	"slices"

	"github.com/carve-csi/carve/pkg/lvm"
)

// MakeSnapshot creates a snapshot with a size of its own, like lvcreate --snapshot --size.
func (f administrator) MakeSnapshot(groupName, origin, name string) error {
	defer f.lock()()
	g, err := f.writable("lvcreate", groupName)
	if err != nil {
		return err
	}
	of := g.volumes[origin]
	if of == nil {
		return failure("lvcreate", lvm.ErrNotFound, "volume %s/%s", groupName, origin)
	}
	v, err := g.make(groupName, name, nil)
	if err != nil {
		return err
	}
	if v.extents, err = g.take("lvcreate", 1); err != nil {
		return err
	}
	const steps = 2
	if err := g.commit(f.machine, name, v, steps); err != nil {
		return err
	}
	v.origin, of.snapshots = of, append(of.snapshots, v)
	return nil
}

// IsWhole reports whether a snapshot from MakeSnapshot exists and its origin was not written to
// since: the fake does not preserve overwritten contents.
func (f administrator) IsWhole(groupName, name string) bool {
	defer f.lock()()
	v := f.groups[groupName].volumes[name]
	return v != nil && !v.overwritten
}

func (f inspection) HasDependents(groupName, name string) (bool, error) {
	defer f.lock()()
	_, v, err := f.active(groupName, name)
	if err != nil {
		return false, err
	}
	return len(v.snapshots) > 0, nil
}

func (v *volume) overwrite() {
	for _, s := range v.snapshots {
		s.overwritten = true
	}
}

func (v *volume) detach() {
	if v.origin != nil {
		v.origin.snapshots = slices.DeleteFunc(v.origin.snapshots, func(s *volume) bool { return s == v })
	}
}

func (g *group) reportSnapshots(v *volume, lv *lvm.Volume) {
	if len(v.snapshots) > 0 {
		lv.Attr.Type = 'o'
	}
	if v.origin == nil {
		return
	}
	for name, origin := range g.volumes {
		if origin == v.origin {
			lv.Attr.Type, lv.Origin = 's', name
		}
	}
}
