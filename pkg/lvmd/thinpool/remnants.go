package thinpool

import (
	"context"
	"fmt"
	"regexp"
	"slices"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// Tag is on all parts of thin pools that lvmd made.
const Tag = "carve.pool"

// unnamed matches the default names of LVM.
var unnamed = regexp.MustCompile(`^lvol[0-9]+$`)

func intend(o lvm.PoolOptions, g *lvm.Group) *journal.PoolIntent {
	i := &journal.PoolIntent{Group: o.Group, Pool: o.Pool, UUID: g.UUID, Seqno: g.Seqno, Metadata: o.MetadataBytes}
	for _, lv := range g.Volumes {
		if unnamed.MatchString(lv.Name) {
			i.Unnamed = append(i.Unnamed, lv.Name)
		}
	}
	return i
}

// remnants names the volumes that a killed lvcreate of ours left before the pool existed. None of
// them ever held data of a volume that was handed out:
//
//   - A volume with our tag and the name of the pool or its metadata. For a linear pool, LVM
//     clears the metadata in such a volume, before it makes that a part of the pool; for others it
//     is the data. A pool never becomes another volume again.
//   - The metadata's spare, before LVM hides it. It has a default name and no tag, but its
//     creation is the group's only change since the intent, which is nil without one.
func remnants(intent *journal.PoolIntent, pool string, g *lvm.Group) []string {
	var names []string
	for i := range g.Volumes {
		lv := &g.Volumes[i]
		if lv.Attr.IsThinPool() || lv.Pool != "" || spec.AreOurs(lv.Tags) {
			continue
		}
		made := (lv.Name == pool || lv.Name == metadataName(pool)) && slices.Contains(lv.Tags, Tag)
		spare := lv.Layout.IsLinear() && intent != nil && intent.UUID == g.UUID && g.Seqno == intent.Seqno+1 &&
			lv.Size == intent.Metadata && len(lv.Tags) == 0 &&
			unnamed.MatchString(lv.Name) && !slices.Contains(intent.Unnamed, lv.Name)
		if made || spare {
			names = append(names, lv.Name)
		}
	}
	return names
}

// clearRemnants removes the remnants of the configured pools, and returns the groups afterwards. It
// also returns the failures, by journal.PoolKey.
func (m *Maker) clearRemnants(ctx context.Context, c *config.Config, names []string, found []lvm.Group) ([]lvm.Group, map[string]error, error) {
	intents, err := m.journal.PoolIntents()
	if err != nil {
		return nil, nil, err
	}
	removed, uncleared := false, map[string]error{}
	for i := range c.Classes {
		dc := &c.Classes[i]
		if dc.Thin == nil {
			continue
		}
		for j := range found {
			g := &found[j]
			if !slices.Contains(dc.VolumeGroups, g.Name) || g.MissingDevices > 0 || g.Exported || g.ReadOnly {
				continue
			}
			pool := journal.PoolKey(g.Name, dc.Thin.Pool)
			left := remnants(intents[pool], dc.Thin.Pool, g)
			if len(left) == 0 {
				// LVM waits for a killed command to end, so no remnants can follow. End the intent:
				// the next volume in the group may look like the spare.
				m.endIntent(intents[pool])
				continue
			}
			m.log.Warn("what a killed command left of a thin pool is removed", "group", g.Name, "pool", dc.Thin.Pool, "volumes", left)
			if err := m.lvm.Remove(ctx, g.Name, left); err != nil {
				uncleared[pool] = fmt.Errorf("removing what is left of thin pool %q in volume group %q: %w", dc.Thin.Pool, g.Name, err)
			}
			removed = true
		}
	}
	if !removed {
		return found, nil, nil
	}
	if found, err = m.lvm.Scan(ctx, names); err != nil {
		return nil, nil, fmt.Errorf("scanning after the remnants of thin pools were removed: %w", err)
	}
	return found, uncleared, nil
}
