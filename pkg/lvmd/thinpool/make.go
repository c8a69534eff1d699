package thinpool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
	"github.com/carve-csi/carve/pkg/quantity"
)

// LVM is what a Maker needs of lvm.Groups.
type LVM interface {
	Scan(ctx context.Context, groups []string) ([]lvm.Group, error)
	Create(ctx context.Context, o lvm.CreateOptions) error
	CreatePool(ctx context.Context, o lvm.PoolOptions) error
	MakePool(ctx context.Context, o lvm.PoolOptions, metadata string) error
	Remove(ctx context.Context, group string, volumes []string) error
}

// Maker makes thin pools. Its methods may be called at the same time for different groups; the
// caller has the exclusive slots of the groups.
type Maker struct {
	lvm     LVM
	journal *journal.Journal
	log     *slog.Logger
	// report takes why a pool could not be made; nil is that it is there.
	report func(group, pool string, err error)
	// crash is called between any two effects, with a name for the place: tests end lvmd's
	// process run there.
	crash func(point string)
}

// New makes a Maker. report takes of each pool why it could not be made, or nil when it is
// there. crash is called between any two effects, with a name for the place.
func New(l LVM, j *journal.Journal, log *slog.Logger, report func(group, pool string, err error), crash func(point string)) *Maker {
	return &Maker{lvm: l, journal: j, log: log, report: report, crash: crash}
}

// MakeAtStart makes the pools of all groups, found as scanned, and returns the groups as they are
// then. A pool that cannot be made, or cannot be used as it is, is no error: it is a condition of its
// class, and is tried again later, while the other classes of the node are served.
func (m *Maker) MakeAtStart(ctx context.Context, c *config.Config, names []string, found []lvm.Group) ([]lvm.Group, error) {
	found, err := m.makeAll(ctx, c, names, found)
	if err == nil || ctx.Err() != nil {
		return found, err
	}
	m.log.Error("not all thin pools could be made; it will be tried again", "error", err)
	if found, err = m.lvm.Scan(ctx, names); err != nil {
		return nil, fmt.Errorf("scanning after a thin pool could not be made: %w", err)
	}
	// What is left of them can be distinguished from what others make only before they do.
	found, uncleared, err := m.clearRemnants(ctx, c, names, found)
	for pool, err := range uncleared {
		m.log.Error("what is left of a thin pool cannot be removed; it will be tried again", "pool", pool, "error", err)
	}
	return found, err
}

// Make makes the thin pools of one group that are not there. The caller has the group's slot.
func (m *Maker) Make(ctx context.Context, c *config.Config, group string) error {
	names := []string{group}
	found, err := m.lvm.Scan(ctx, names)
	if err != nil {
		return err
	}
	if _, err = m.makeAll(ctx, c, names, found); err == nil {
		return nil
	}
	// What is left of them can be distinguished from what others make only before they do.
	if found, scanErr := m.lvm.Scan(ctx, names); scanErr == nil {
		_, uncleared, scanErr := m.clearRemnants(ctx, c, names, found)
		err = errors.Join(append(slices.Collect(maps.Values(uncleared)), err, scanErr)...)
	}
	return err
}

// makeAll makes the thin pools that the configuration names and that are not
// there, adopts the others, and returns the groups as they are then. One that
// cannot be made does not keep the others from it.
func (m *Maker) makeAll(ctx context.Context, c *config.Config, names []string, found []lvm.Group) ([]lvm.Group, error) {
	found, uncleared, err := m.clearRemnants(ctx, c, names, found)
	if err != nil {
		return nil, err
	}
	var failed []error
	for i := range c.Classes {
		dc := &c.Classes[i]
		if dc.Thin == nil {
			continue
		}
		for _, name := range dc.VolumeGroups {
			at := slices.IndexFunc(found, func(g lvm.Group) bool { return g.Name == name })
			if at < 0 {
				continue
			}
			changed, err := false, uncleared[journal.PoolKey(name, dc.Thin.Pool)]
			if err == nil {
				changed, err = m.makeOne(ctx, dc, &found[at])
			}
			m.report(name, dc.Thin.Pool, err)
			if err != nil {
				failed = append(failed, err)
			}
			if !changed {
				continue
			}
			// The next pool takes what this one leaves.
			if found, err = m.lvm.Scan(ctx, names); err != nil {
				return nil, fmt.Errorf("scanning after thin pool %q was made: %w", dc.Thin.Pool, err)
			}
		}
	}
	return found, errors.Join(failed...)
}

// makeOne makes a class' pool in a group, or checks the one that is there. It reports
// whether the group may have changed, also with an error.
func (m *Maker) makeOne(ctx context.Context, dc *config.DeviceClass, g *lvm.Group) (changed bool, err error) {
	t := dc.Thin
	if lv := g.Volume(t.Pool); lv != nil {
		switch {
		case !lv.Attr.IsThinPool():
			return false, dc.Problem("thin.pool", t.Pool, fmt.Sprintf(
				"volume group %q has a logical volume of that name that is no thin pool; choose another name", g.Name))
		case !lv.Attr.ZeroNew:
			return false, dc.Problem("thin.pool", t.Pool, fmt.Sprintf(
				"the thin pool of that name in volume group %q does not zero new blocks, so that volumes would show what earlier ones held; turn it on (lvchange --zero y %s/%s)",
				g.Name, g.Name, t.Pool))
		}
		return false, nil
	}
	if g.MissingDevices > 0 || g.Exported || g.ReadOnly {
		return false, fmt.Errorf("volume group %q cannot be changed now: it is exported or read-only, or misses a device", g.Name)
	}
	o := options(t, g)
	if o.Extents < 1 {
		least := g.ExtentSize
		if t.Size.Percent > 0 {
			least += 2 * o.MetadataBytes
		}
		return false, dc.Problem("thin.size", "", fmt.Sprintf(
			"it leaves no extent for data: those of volume group %q have %s; at least %s are needed", g.Name, quantity.Bytes(g.ExtentSize), quantity.Bytes(least)))
	}
	if problem := layoutProblem(dc, o, g); problem != nil {
		return false, problem
	}
	m.log.Info("making a thin pool", "group", g.Name, "pool", t.Pool, "bytes", o.Extents*g.ExtentSize, "metadata", o.MetadataBytes, "chunk", o.ChunkSize,
		"layout", dataLayout(t, g).String())
	create := m.createLinear
	if !dataLayout(t, g).IsLinear() {
		create = m.createLaidOut
	}
	if err := create(ctx, t, o, g); err != nil {
		return true, fmt.Errorf("making thin pool %q in volume group %q: %w", t.Pool, g.Name, err)
	}
	return true, nil
}

// createLinear makes a linear pool, which is one command.
func (m *Maker) createLinear(ctx context.Context, _ *config.ThinPool, o lvm.PoolOptions, g *lvm.Group) error {
	return m.withIntent(intend(o, g), func() error { return m.lvm.CreatePool(ctx, o) })
}

// createLaidOut makes a pool of another layout: a volume for its data, one for its
// metadata, and then the pool of both. What is left of it when lvmd or LVM is killed in
// between has our tag, see remnants.
func (m *Maker) createLaidOut(ctx context.Context, t *config.ThinPool, o lvm.PoolOptions, g *lvm.Group) error {
	data, metadata, fits := place(t, o, g)
	if !fits {
		return fmt.Errorf("%d extents of type %s: %w", o.Extents, t.Layout, lvm.ErrNoSpace)
	}
	err := m.lvm.Create(ctx, lvm.CreateOptions{
		Group: g.Name, Volume: o.Pool, Layout: dataLayout(t, g), Extents: o.Extents, On: data, Tags: o.Tags,
	})
	if err != nil {
		return fmt.Errorf("its data: %w", err)
	}
	m.crash("pool: data made")
	err = m.lvm.Create(ctx, lvm.CreateOptions{
		Group: g.Name, Volume: metadataName(o.Pool), Layout: metadataLayout(t), Extents: o.MetadataBytes / g.ExtentSize, On: metadata, Tags: o.Tags,
	})
	if err != nil {
		return fmt.Errorf("its metadata: %w", err)
	}
	m.crash("pool: metadata made")
	found, err := m.lvm.Scan(ctx, []string{g.Name})
	if err != nil {
		return err
	}
	if len(found) != 1 {
		return fmt.Errorf("volume group %q: %w", g.Name, lvm.ErrNotFound)
	}
	return m.withIntent(intend(o, &found[0]), func() error { return m.lvm.MakePool(ctx, o, metadataName(o.Pool)) })
}

// withIntent makes a pool while the journal says so.
func (m *Maker) withIntent(intent *journal.PoolIntent, create func() error) error {
	if err := m.journal.PutPoolIntent(intent); err != nil {
		return err
	}
	if err := create(); err != nil {
		return err
	}
	m.crash("pool: made")
	m.endIntent(intent)
	return nil
}

// endIntent removes an intent that was carried out, or of which nothing is left; nil is none.
func (m *Maker) endIntent(intent *journal.PoolIntent) {
	if intent == nil {
		return
	}
	if err := m.journal.RemovePoolIntent(intent); err != nil {
		m.log.Error("the intent to make a thin pool is left in the journal until the next start", "group", intent.Group, "pool", intent.Pool, "error", err)
	}
}
