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

// LVM is the part of lvm.Groups that a Maker needs.
type LVM interface {
	Scan(ctx context.Context, groups []string) ([]lvm.Group, error)
	Create(ctx context.Context, o lvm.CreateOptions) error
	CreatePool(ctx context.Context, o lvm.PoolOptions) error
	MakePool(ctx context.Context, o lvm.PoolOptions, metadata string) error
	Remove(ctx context.Context, group string, volumes []string) error
}

// Maker makes thin pools. Its methods may run concurrently for different groups. The caller has the
// slots of the groups.
type Maker struct {
	lvm     LVM
	journal *journal.Journal
	log     *slog.Logger
	report  func(group, pool string, err error)
	crash   func(point string)
}

// New returns a Maker. report gets each pool's error, or nil if the pool exists. crash is called
// between any two effects, with the crash point's name, where tests may kill lvmd.
func New(l LVM, j *journal.Journal, log *slog.Logger, report func(group, pool string, err error), crash func(point string)) *Maker {
	return &Maker{lvm: l, journal: j, log: log, report: report, crash: crash}
}

// MakeAtStart makes the missing pools of all groups, found as scanned, and returns the groups
// afterwards. A pool that cannot be made, or used as it is, is no error: its class gets a
// condition, lvmd retries later, and serves the other classes.
func (m *Maker) MakeAtStart(ctx context.Context, c *config.Config, names []string, found []lvm.Group) ([]lvm.Group, error) {
	found, err := m.makeAll(ctx, c, names, found)
	if err == nil || ctx.Err() != nil {
		return found, err
	}
	m.log.Error("not all thin pools could be made; it will be tried again", "error", err)
	if found, err = m.lvm.Scan(ctx, names); err != nil {
		return nil, fmt.Errorf("scanning after a thin pool could not be made: %w", err)
	}
	// Clear remnants now: after others changed the group, they cannot be identified.
	found, uncleared, err := m.clearRemnants(ctx, c, names, found)
	for pool, err := range uncleared {
		m.log.Error("what is left of a thin pool cannot be removed; it will be tried again", "pool", pool, "error", err)
	}
	return found, err
}

// Make makes the missing thin pools of one group. The caller has the group's slot.
func (m *Maker) Make(ctx context.Context, c *config.Config, group string) error {
	names := []string{group}
	found, err := m.lvm.Scan(ctx, names)
	if err != nil {
		return err
	}
	if _, err = m.makeAll(ctx, c, names, found); err == nil {
		return nil
	}
	// Clear remnants now: after others changed the group, they cannot be identified.
	if found, scanErr := m.lvm.Scan(ctx, names); scanErr == nil {
		_, uncleared, scanErr := m.clearRemnants(ctx, c, names, found)
		err = errors.Join(append(slices.Collect(maps.Values(uncleared)), err, scanErr)...)
	}
	return err
}

// makeAll makes the missing pools, checks the others, and returns the groups afterwards. It goes on
// after a pool that fails.
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
			// The next pool's size depends on what this one left.
			if found, err = m.lvm.Scan(ctx, names); err != nil {
				return nil, fmt.Errorf("scanning after thin pool %q was made: %w", dc.Thin.Pool, err)
			}
		}
	}
	return found, errors.Join(failed...)
}

// makeOne makes a pool, or checks the existing one. changed is true if the group may have changed,
// also with an error.
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

func (m *Maker) createLinear(ctx context.Context, _ *config.ThinPool, o lvm.PoolOptions, g *lvm.Group) error {
	return m.withIntent(intend(o, g), func() error { return m.lvm.CreatePool(ctx, o) })
}

// createLaidOut makes a pool that is not linear: first volumes for its data and metadata, then the
// pool of both. Remnants of a kill in between have our tag, see remnants.
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

// endIntent removes an intent that was carried out, or left no remnants; nil means none.
func (m *Maker) endIntent(intent *journal.PoolIntent) {
	if intent == nil {
		return
	}
	if err := m.journal.RemovePoolIntent(intent); err != nil {
		m.log.Error("the intent to make a thin pool is left in the journal until the next start", "group", intent.Group, "pool", intent.Pool, "error", err)
	}
}
