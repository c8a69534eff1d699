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

// Tag is on every thin pool that lvmd made, from its first part on.
const Tag = "carve.pool"

// unnamed matches the names that LVM gives.
var unnamed = regexp.MustCompile(`^lvol[0-9]+$`)

// intend is the intent to make a pool in a group as it was scanned.
func intend(o lvm.PoolOptions, g *lvm.Group) *journal.PoolIntent {
	i := &journal.PoolIntent{Group: o.Group, Pool: o.Pool, UUID: g.UUID, Seqno: g.Seqno, Metadata: o.MetadataBytes}
	for _, lv := range g.Volumes {
		if unnamed.MatchString(lv.Name) {
			i.Unnamed = append(i.Unnamed, lv.Name)
		}
	}
	return i
}

// remnants are the volumes that an lvcreate of ours left when it was killed before
// the pool was one. No volume that was handed out ever held any of it:
//
//   - a volume of the pool's name with our tag, or of that of its metadata. Of a linear
//     pool, LVM clears the metadata in it, before it makes it a part of the pool; of
//     others it is their data. A pool never becomes another volume again;
//   - the spare for the metadata, before it is hidden. It has a name of LVM's
//     making and no tag: what proves it ours is that its creation is the one change
//     of the group since the intent. intent is nil without one.
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

// clearRemnants removes what commands that were killed left of the pools that the
// configuration names, and returns the groups as they are then, and by journal.PoolKey why the remnants
// of a pool are still there.
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
				// LVM waits for the end of a command that was killed, so nothing more comes of it. The next volume
				// in the group may look like the spare, and be another's.
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
