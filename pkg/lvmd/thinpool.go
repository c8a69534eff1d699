package lvmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
)

const (
	// manyChunksMetadata is the metadata from which on larger chunks are used. A new chunk
	// is zeroed when a part of it is written: small ones cost least.
	manyChunksMetadata = 128 << 20
	// chunkMetadata is what a chunk's mapping takes of the metadata, as LVM
	// reckons.
	chunkMetadata = 64
	// minPoolMetadata and maxPoolMetadata are LVM's bounds.
	minPoolMetadata = 2 << 20
	maxPoolMetadata = 15<<30 + 800<<20
)

// makePoolsAtStart is makePools for the start, which only a configuration that can
// never be stops: where LVM or a disk fails, the other classes are served, and the
// pool is tried again later.
func (s *Service) makePoolsAtStart(ctx context.Context, c *config.Config, names []string, found []lvm.Group) ([]lvm.Group, error) {
	found, err := s.makePools(ctx, c, names, found)
	var problems config.Problems
	if err == nil || errors.As(err, &problems) || ctx.Err() != nil {
		return found, err
	}
	s.log.Error("not all thin pools could be made; it will be tried again", "error", err)
	if found, err = s.lvm.Scan(ctx, names); err != nil {
		return nil, fmt.Errorf("scanning after a thin pool could not be made: %w", err)
	}
	// What is left of them is told from what others make only while nobody does.
	return s.clearPools(ctx, c, names, found)
}

// retryPools makes the thin pools of a group that could not be made before.
func (s *Service) retryPools(ctx context.Context, g *group) {
	s.model.mu.Lock()
	due := g.present && !g.poolsDue.IsZero() && time.Now().After(g.poolsDue)
	c := s.model.config
	s.model.mu.Unlock()
	if !due {
		return
	}
	done, err := s.take(ctx, g)
	if err != nil {
		return
	}
	defer done()
	if err := s.makePoolsIn(ctx, c, g.name); err != nil {
		s.log.Error("not all thin pools could be made; it will be tried again", "group", g.name, "error", err)
		if errors.Is(err, lvm.ErrTimedOut) {
			s.wedge(g, err)
			return
		}
	}
	if err := s.rescan(g, nil); err != nil {
		s.log.Warn("scanning failed", "group", g.name, "error", err)
	}
}

// makePoolsIn makes the thin pools of one group that are not there, as the start
// does. The caller has the group's turn.
func (s *Service) makePoolsIn(ctx context.Context, c *config.Config, group string) error {
	names := []string{group}
	found, err := s.lvm.Scan(ctx, names)
	if err != nil {
		return err
	}
	if _, err = s.makePools(ctx, c, names, found); err == nil {
		return nil
	}
	// What is left of them is told from what others make only while nobody does.
	if found, scanErr := s.lvm.Scan(ctx, names); scanErr == nil {
		_, scanErr = s.clearPools(ctx, c, names, found)
		err = errors.Join(err, scanErr)
	}
	return err
}

// notePool takes down why a class' pool is not made; nil is that it is.
func (s *Service) notePool(group, name string, err error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	g := s.model.groups[group]
	p := g.pool(name)
	if err == nil {
		p.unmade = ""
	} else {
		p.unmade = err.Error()
	}
	g.poolsDue = time.Time{}
	for _, p := range g.pools {
		if p.unmade != "" {
			g.poolsDue = time.Now().Add(s.provider.retry)
		}
	}
}

// makePools makes the thin pools that the configuration names and that are not
// there, adopts the others, and returns the groups as they are then. One that
// cannot be made does not keep the others from it.
func (s *Service) makePools(ctx context.Context, c *config.Config, names []string, found []lvm.Group) ([]lvm.Group, error) {
	found, err := s.clearPools(ctx, c, names, found)
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
			changed, err := s.makePool(ctx, dc, &found[at])
			s.notePool(name, dc.Thin.Pool, err)
			if err != nil {
				failed = append(failed, err)
			}
			if !changed {
				continue
			}
			// The next pool takes what this one leaves.
			if found, err = s.lvm.Scan(ctx, names); err != nil {
				return nil, fmt.Errorf("scanning after thin pool %q was made: %w", dc.Thin.Pool, err)
			}
		}
	}
	return found, errors.Join(failed...)
}

// makePool makes a class' pool in a group, or checks the one that is there. It tells
// whether the group may have changed, also with an error.
func (s *Service) makePool(ctx context.Context, dc *config.DeviceClass, g *lvm.Group) (changed bool, err error) {
	t := dc.Thin
	if lv := g.Volume(t.Pool); lv != nil {
		switch {
		case lv.Attr.Type != poolType:
			return false, dc.Problem("thin.pool", t.Pool, fmt.Sprintf(
				"volume group %q has a logical volume of that name that is no thin pool; choose another name, or remove it", g.Name))
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
	o := poolOptions(t, g)
	if o.Extents < 1 {
		least := g.ExtentSize
		if t.Size.Percent > 0 {
			least += 2 * o.MetadataBytes
		}
		return false, dc.Problem("thin.size", "", fmt.Sprintf(
			"it leaves no extent for data: those of volume group %q have %d bytes; at least %d bytes are needed", g.Name, g.ExtentSize, least))
	}
	if need, free := o.Extents+2*(o.MetadataBytes/g.ExtentSize), g.Allocatable(); need > free {
		return false, dc.Problem("thin.size", "", fmt.Sprintf(
			"a pool of %d bytes, with %d bytes of metadata and as much again for its repair, needs %d bytes of volume group %q, of which %d are free",
			o.Extents*g.ExtentSize, o.MetadataBytes, need*g.ExtentSize, g.Name, free*g.ExtentSize))
	}
	s.log.Info("making a thin pool", "group", g.Name, "pool", t.Pool, "bytes", o.Extents*g.ExtentSize, "metadata", o.MetadataBytes, "chunk", o.ChunkSize)
	intent := intendPool(o, g)
	if err := s.journal.putPool(intent); err != nil {
		return false, err
	}
	if err := s.lvm.CreatePool(ctx, o); err != nil {
		return true, fmt.Errorf("making thin pool %q in volume group %q: %w", t.Pool, g.Name, err)
	}
	s.crash("pool: made")
	if err := s.journal.forgetPool(intent); err != nil {
		// It says nothing that could be wrong later: the pool is there.
		s.log.Error("the intent to make a thin pool is left in the journal", "group", g.Name, "pool", t.Pool, "error", err)
	}
	return true, nil
}

// poolOptions are the sizes of a pool that is made. A percentage of the group
// includes the metadata and its spare; bytes are those of the data.
func poolOptions(t *config.ThinPool, g *lvm.Group) lvm.PoolOptions {
	data := t.Size.Of(g.Extents * g.ExtentSize)
	chunk := max(int64(config.MinChunk), t.ChunkSize)
	for t.ChunkSize == 0 && chunk < config.MaxChunk && data/chunk*chunkMetadata > manyChunksMetadata {
		chunk *= 2
	}
	metadata := t.MetadataSize
	if metadata == 0 {
		// Snapshots and overprovisioned volumes have mappings of their own.
		metadata = min(maxPoolMetadata, max(minPoolMetadata, config.MulDiv(data/chunk*chunkMetadata, t.Overprovisioning, 100)))
	}
	metadataExtents := (min(metadata, maxPoolMetadata) + g.ExtentSize - 1) / g.ExtentSize
	extents := data / g.ExtentSize
	if t.Size.Percent > 0 {
		extents -= 2 * metadataExtents
	}
	return lvm.PoolOptions{
		Group: g.Name, Pool: t.Pool, Extents: extents, MetadataBytes: metadataExtents * g.ExtentSize, ChunkSize: chunk,
		Tags: []string{tagPool},
	}
}

// poolsIn names the thin pools of a scanned group that we have to do with: those of our
// classes, and those that volumes or snapshots of ours lie in.
func (s *Service) poolsIn(g *lvm.Group) map[string]bool {
	pools := map[string]bool{}
	for i := range g.Volumes {
		if lv := &g.Volumes[i]; lv.Pool != "" && isOurs(lv.Tags) {
			pools[lv.Pool] = true
		}
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	for _, c := range s.model.classes {
		for _, p := range c.parts {
			if p.pool != nil && p.group.name == g.Name {
				pools[p.pool.name] = true
			}
		}
	}
	return pools
}

// inactivePool tells whether a scanned volume is a pool that has no device.
func (s *Service) inactivePool(group string, lv *lvm.Volume) bool {
	if lv.Attr.Type != poolType {
		return false
	}
	_, err := s.lvm.PoolStatus(group, lv.Name)
	return errors.Is(err, lvm.ErrNotFound)
}
