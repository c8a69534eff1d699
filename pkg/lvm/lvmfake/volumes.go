package lvmfake

import (
	"context"
	"errors"
	"slices"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
)

func (f volumes) Inconsistent(groupName string) ([]string, error) {
	defer f.lock()()
	if g := f.groups[groupName]; g != nil {
		return slices.Clone(g.inconsistent), nil
	}
	return nil, nil
}

func (f volumes) Repair(ctx context.Context, groupName string, volumes []string) error {
	if err := f.begin(ctx, OpRepair, groupName); err != nil {
		return err
	}
	defer f.lock()()
	g := f.groups[groupName]
	if g == nil {
		return nil
	}
	g.inconsistent = slices.DeleteFunc(g.inconsistent, func(device string) bool {
		return slices.ContainsFunc(volumes, func(v string) bool { return layout.IsOf(device, v) })
	})
	return nil
}

func (f volumes) Scan(ctx context.Context, names []string) ([]lvm.Group, error) {
	if err := f.begin(ctx, OpScan, ""); err != nil {
		return nil, err
	}
	defer f.lock()()
	var found []lvm.Group
	for _, name := range names {
		if g := f.groups[name]; g != nil && f.takes(name, g) {
			found = append(found, g.report(name))
		}
	}
	return found, nil
}

func (f volumes) Activate(ctx context.Context, group string, names []string) error {
	return f.activateAll(ctx, OpActivate, group, names)
}

func (f volumes) ActivatePool(ctx context.Context, group, pool string, _ bool) error {
	return f.activateAll(ctx, OpActivatePool, group, []string{pool})
}

func (f volumes) activateAll(ctx context.Context, op Op, group string, names []string) error {
	if err := f.begin(ctx, op, group); err != nil {
		return err
	}
	defer f.lock()()
	g := f.groups[group]
	if g == nil {
		return failure("lvchange", lvm.ErrNotFound, "volume group %q", group)
	}
	var errs []error
	for _, name := range names {
		v := g.volumes[name]
		if v == nil {
			errs = append(errs, failure("lvchange", lvm.ErrNotFound, "volume %s/%s", group, name))
			continue
		}
		f.activate(v)
		if v.thin != nil && !v.skipped() {
			f.activate(v.thin.pool)
		}
	}
	return errors.Join(errs...)
}

// Create takes the lowest extents.
func (f volumes) Create(ctx context.Context, o lvm.CreateOptions) error {
	return f.command(ctx, OpCreate, o.Group, "lvcreate", func(g *group) error { return f.create(g, o) })
}

func (f volumes) create(g *group, o lvm.CreateOptions) error {
	v, err := g.make(o.Group, o.Volume, o.Tags)
	if err != nil {
		return err
	}
	if o.Extents < 1 {
		return failure("lvcreate", nil, "bad size %d", o.Extents)
	}
	if g.isFull() {
		return failure("lvcreate", nil, "maximum number of logical volumes (%d) reached in volume group %s", g.mostVolumes, o.Group)
	}
	if err := g.layOut("lvcreate", o.Group, v, o.Layout, o.Extents, o.On); err != nil {
		return err
	}
	return g.commit(f.machine, o.Volume, v, o.Layout.Commits())
}

func (f volumes) Extend(ctx context.Context, groupName, name string, extents int64, on ...layout.Share) error {
	return f.command(ctx, OpExtend, groupName, "lvextend", func(g *group) error { return g.extend(groupName, name, extents, on) })
}

func (f volumes) ExtendAt(ctx context.Context, seqno uint64, groupName, name string, extents int64, on ...layout.Share) error {
	return f.command(ctx, OpExtend, groupName, "lvextend", func(g *group) error {
		if g.seqno != seqno {
			return failure("lvextend", lvm.ErrChanged, "sequence number %d, not %d", g.seqno, seqno)
		}
		return g.extend(groupName, name, extents, on)
	})
}

func (g *group) extend(groupName, name string, extents int64, on []layout.Share) error {
	v := g.volumes[name]
	if v == nil {
		return failure("lvextend", lvm.ErrNotFound, "volume %s/%s", groupName, name)
	}
	if len(v.snapshots) > 0 && v.minor != 0 {
		return failure("lvextend", nil, "snapshot origin volumes can be resized only while inactive: try lvchange -an")
	}
	if v.thin != nil {
		return g.extendThin(groupName, name, extents)
	}
	more := extents - int64(len(v.extents))
	if more <= 0 {
		return failure("lvextend", nil, "volume %s/%s is not smaller than %d extents", groupName, name, extents)
	}
	before := *v
	if err := g.layOut("lvextend", groupName, v, v.layout(), more, on); err != nil {
		return err
	}
	if text := g.text(); text > g.metadataLimit {
		had := before.all()
		g.give(slices.DeleteFunc(v.all(), func(e int64) bool { return slices.Contains(had, e) }))
		v.extents, v.shape = before.extents, before.shape
		return failure("lvextend", lvm.ErrNoSpace, "metadata of %d bytes exceeds %d", text, g.metadataLimit)
	}
	g.seqno++
	return nil
}

func (f volumes) Remove(ctx context.Context, groupName string, names []string) error {
	return f.command(ctx, OpRemove, groupName, "lvremove", func(g *group) error { return g.remove(groupName, names) })
}

func (g *group) remove(groupName string, names []string) error {
	var failed error
	removed := false
	for _, name := range names {
		v := g.volumes[name]
		switch {
		case v == nil:
			failed = failure("lvremove", lvm.ErrNotFound, "volume %s/%s", groupName, name)
		case len(v.snapshots) > 0:
			failed = failure("lvremove", lvm.ErrHasDependents, "volume %s/%s", groupName, name)
		case v.opens() > 0:
			failed = failure("lvremove", lvm.ErrBusy, "volume %s/%s", groupName, name)
		case v.thin != nil:
			g.release(v.thin)
			delete(g.volumes, name)
			g.seqno += lvm.ThinSteps
		case v.pool != nil:
			failed = failure("lvremove", nil, "the thin pool %s/%s is not for callers to remove", groupName, name)
		default:
			g.give(v.all())
			v.detach()
			delete(g.volumes, name)
			removed = true
		}
	}
	if removed {
		g.seqno++
	}
	return failed
}

func (f volumes) Untag(ctx context.Context, groupName string, volumes []string, tags ...string) error {
	return f.command(ctx, OpUntag, groupName, "lvchange", func(g *group) error {
		for _, name := range volumes {
			v := g.volumes[name]
			if v == nil {
				return failure("lvchange", lvm.ErrNotFound, "volume %s/%s", groupName, name)
			}
			v.tags = slices.DeleteFunc(v.tags, func(t string) bool { return slices.Contains(tags, t) })
			g.seqno++
		}
		return nil
	})
}

func (f volumes) Tag(ctx context.Context, groupName string, volumes []string, tag string) error {
	return f.command(ctx, OpTag, groupName, "lvchange", func(g *group) error {
		// The metadata records the command line, too.
		words := int64(0)
		for _, name := range volumes {
			words += int64(len(groupName) + len(name) + 2)
		}
		for _, name := range volumes {
			v := g.volumes[name]
			if v == nil {
				return failure("lvchange", lvm.ErrNotFound, "volume %s/%s", groupName, name)
			}
			v.tags = append(v.tags, tag)
			if text := g.text() + words; text > g.metadataLimit {
				v.tags = v.tags[:len(v.tags)-1]
				return failure("lvchange", lvm.ErrNoSpace, "metadata of %d bytes exceeds %d", text, g.metadataLimit)
			}
			g.seqno++
		}
		return nil
	})
}
