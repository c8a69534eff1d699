package lvmd

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
)

var bucketPools = []byte("pools")

// tagPool is on every thin pool that lvmd made, from its first part on.
const tagPool = "carve.pool"

// unnamed matches the names that LVM gives.
var unnamed = regexp.MustCompile(`^lvol[0-9]+$`)

// poolIntent is what the journal keeps of a thin pool while LVM makes it, which
// takes LVM several commits. It tells what a command that was killed left.
type poolIntent struct {
	Group string `json:"group"`
	Pool  string `json:"pool"`
	// UUID and Seqno are the group's before the command.
	UUID  string `json:"uuid"`
	Seqno uint64 `json:"seqno"`
	// Metadata is the size of the pool's metadata, and of its spare, in bytes.
	Metadata int64 `json:"metadata"`
	// Unnamed are the volumes that had names of LVM's making.
	Unnamed []string `json:"unnamed,omitempty"`
}

func (i *poolIntent) key() []byte { return []byte(i.Group + "/" + i.Pool) }

// intendPool is the intent to make a pool in a group as it was scanned.
func intendPool(o lvm.PoolOptions, g *lvm.Group) *poolIntent {
	i := &poolIntent{Group: o.Group, Pool: o.Pool, UUID: g.UUID, Seqno: g.Seqno, Metadata: o.MetadataBytes}
	for _, lv := range g.Volumes {
		if unnamed.MatchString(lv.Name) {
			i.Unnamed = append(i.Unnamed, lv.Name)
		}
	}
	return i
}

// remnants are the volumes that an lvcreate of ours left when it was killed before
// the pool was one. None of them ever held anything that anybody was given:
//
//   - a linear volume of the pool's name with our tag. LVM clears the metadata
//     in it, before it makes it a part of the pool; a pool never becomes linear
//     again;
//   - the spare for the metadata, before it is hidden. It has a name of LVM's
//     making and no tag: what proves it ours is that its creation is the one change
//     of the group since the intent. intent is nil without one.
func remnants(intent *poolIntent, pool string, g *lvm.Group) []string {
	var names []string
	for i := range g.Volumes {
		lv := &g.Volumes[i]
		if lv.Attr.Type == poolType || lv.Pool != "" || isOurs(lv.Tags) || !lv.Layout.IsLinear() {
			continue
		}
		made := lv.Name == pool && slices.Contains(lv.Tags, tagPool)
		spare := intent != nil && intent.UUID == g.UUID && g.Seqno == intent.Seqno+1 &&
			lv.Size == intent.Metadata && len(lv.Tags) == 0 &&
			unnamed.MatchString(lv.Name) && !slices.Contains(intent.Unnamed, lv.Name)
		if made || spare {
			names = append(names, lv.Name)
		}
	}
	return names
}

// clearPools removes what commands that were killed left of the pools that the
// configuration names, and returns the groups as they are then.
func (s *Service) clearPools(ctx context.Context, c *config.Config, names []string, found []lvm.Group) ([]lvm.Group, error) {
	intents, err := s.journal.poolIntents()
	if err != nil {
		return nil, err
	}
	removed := false
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
			left := remnants(intents[g.Name+"/"+dc.Thin.Pool], dc.Thin.Pool, g)
			if len(left) == 0 {
				continue
			}
			s.log.Warn("what a killed command left of a thin pool is removed", "group", g.Name, "pool", dc.Thin.Pool, "volumes", left)
			if err := s.lvm.Remove(ctx, g.Name, left); err != nil {
				return nil, fmt.Errorf("removing what is left of thin pool %q in volume group %q: %w", dc.Thin.Pool, g.Name, err)
			}
			removed = true
		}
	}
	if !removed {
		return found, nil
	}
	if found, err = s.lvm.Scan(ctx, names); err != nil {
		return nil, fmt.Errorf("scanning after the remnants of thin pools were removed: %w", err)
	}
	return found, nil
}

// putPool stores an intent in place of an earlier one for the same pool.
func (j *journal) putPool(i *poolIntent) error {
	return j.do(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(bucketPools)
		if err != nil {
			return err
		}
		value, err := json.Marshal(i)
		if err != nil {
			return err
		}
		return b.Put(i.key(), value)
	})
}

// forgetPool removes an intent.
func (j *journal) forgetPool(i *poolIntent) error {
	return j.do(func(tx *bbolt.Tx) error {
		if b := tx.Bucket(bucketPools); b != nil {
			return b.Delete(i.key())
		}
		return nil
	})
}

// poolIntents returns all intents, by GROUP/POOL.
func (j *journal) poolIntents() (map[string]*poolIntent, error) {
	intents := map[string]*poolIntent{}
	err := j.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketPools)
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, v []byte) error {
			var i poolIntent
			if err := json.Unmarshal(v, &i); err != nil {
				return fmt.Errorf("journal: thin pool %q: %w", k, err)
			}
			intents[string(k)] = &i
			return nil
		})
	})
	return intents, err
}
