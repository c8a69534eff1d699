package lvmfake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/carve-csi/carve/pkg/lvm"
)

// The commands on thin pools.
const (
	OpCreatePool         Op = "create pool"
	OpCreateThin         Op = "create thin"
	OpSnapshot           Op = "snapshot"
	OpExtendPool         Op = "extend pool"
	OpExtendPoolMetadata Op = "extend pool metadata"
	OpUntag              Op = "untag"
	OpTag                Op = "tag"
)

// metadataBlock is the unit in which the kernel counts a pool's metadata.
const metadataBlock = 4096

// errPoolFull is what a write gets that needs a chunk when there is none.
var errPoolFull = errors.New("no space left on device")

// pool is a thin pool.
type pool struct {
	metadata, spare []int64
	chunkSize       int64
	keepsOld        bool // does not zero new blocks
	used            int64
	// metadataUsed is set by tests; zero means as much as the chunks take.
	metadataUsed       int64
	readOnly, failed   bool
	needsCheck, queues bool
}

// thin is a thin volume.
type thin struct {
	pool   *volume
	origin string
	bytes  int64
	skip   bool
	chunks map[int64]*chunk
}

// chunk is a chunk of a pool that thin volumes share until one writes to it.
type chunk struct {
	users  int
	blocks map[int64]byte
}

func (v *volume) skipped() bool { return v.thin != nil && v.thin.skip }

// CreatePool implements lvm.Thin.
func (f *Groups) CreatePool(ctx context.Context, o lvm.PoolOptions) error {
	return f.command(ctx, OpCreatePool, o.Group, "lvcreate", func(g *group) error {
		if o.Extents < 1 || o.MetadataBytes < 1 || o.MetadataBytes%g.extentSize != 0 || o.ChunkSize%(64<<10) != 0 || o.ChunkSize < 1 {
			return failure("lvcreate", nil, "bad sizes %+v", o)
		}
		p := &pool{chunkSize: o.ChunkSize}
		v, err := g.make("lvcreate", o.Group, o.Pool, o.Tags)
		if err != nil {
			return err
		}
		took, err := g.take("lvcreate", o.Extents+2*(o.MetadataBytes/g.extentSize))
		if err != nil {
			return err
		}
		n := o.MetadataBytes / g.extentSize
		v.pool, p.metadata, p.spare, v.extents = p, took[:n], took[n:2*n], took[2*n:]
		return g.commit(f, o.Pool, v, 3)
	})
}

// CreateThin implements lvm.Thin.
func (f *Groups) CreateThin(ctx context.Context, o lvm.ThinOptions) error {
	return f.command(ctx, OpCreateThin, o.Group, "lvcreate", func(g *group) error {
		p := g.volumes[o.Pool]
		switch {
		case p == nil || p.pool == nil:
			return failure("lvcreate", lvm.ErrNotFound, "pool %s/%s", o.Group, o.Pool)
		case o.Bytes < 1 || o.Bytes%g.extentSize != 0:
			return failure("lvcreate", nil, "bad size %d", o.Bytes)
		}
		if err := g.accepts(p); err != nil {
			return err
		}
		v, err := g.make("lvcreate", o.Group, o.Volume, o.Tags)
		if err != nil {
			return err
		}
		v.thin = &thin{pool: p, bytes: o.Bytes, chunks: map[int64]*chunk{}}
		return g.commit(f, o.Volume, v, lvm.ThinSteps)
	})
}

// Snapshot implements lvm.Thin.
func (f *Groups) Snapshot(ctx context.Context, o lvm.SnapshotOptions) error {
	return f.command(ctx, OpSnapshot, o.Group, "lvcreate", func(g *group) error {
		origin := g.volumes[o.Origin]
		switch {
		case origin == nil:
			return failure("lvcreate", lvm.ErrNotFound, "volume %s/%s", o.Group, o.Origin)
		case origin.thin == nil:
			return failure("lvcreate", nil, "volume %s/%s is not thin", o.Group, o.Origin)
		}
		if err := g.accepts(origin.thin.pool); err != nil {
			return err
		}
		v, err := g.make("lvcreate", o.Group, o.Volume, o.Tags)
		if err != nil {
			return err
		}
		v.thin = &thin{
			pool: origin.thin.pool, origin: o.Origin, bytes: origin.thin.bytes, skip: o.Inactive,
			chunks: maps.Clone(origin.thin.chunks),
		}
		if err := g.commit(f, o.Volume, v, lvm.ThinSteps); err != nil {
			return err
		}
		for _, c := range v.thin.chunks {
			c.users++
		}
		return nil
	})
}

// ExtendPool implements lvm.Thin.
func (f *Groups) ExtendPool(ctx context.Context, groupName, name string, extents int64) error {
	return f.command(ctx, OpExtendPool, groupName, "lvextend", func(g *group) error {
		p := g.volumes[name]
		if p == nil || p.pool == nil {
			return failure("lvextend", lvm.ErrNotFound, "pool %s/%s", groupName, name)
		}
		more := extents - int64(len(p.extents))
		if more <= 0 {
			return failure("lvextend", nil, "pool %s/%s is not smaller than %d extents", groupName, name, extents)
		}
		added, err := g.take("lvextend", more)
		if err != nil {
			return err
		}
		p.extents = append(p.extents, added...)
		g.seqno++
		return nil
	})
}

// ExtendPoolMetadata implements lvm.Thin.
func (f *Groups) ExtendPoolMetadata(ctx context.Context, groupName, name string, bytes int64) error {
	return f.command(ctx, OpExtendPoolMetadata, groupName, "lvextend", func(g *group) error {
		p := g.volumes[name]
		if p == nil || p.pool == nil {
			return failure("lvextend", lvm.ErrNotFound, "pool %s/%s", groupName, name)
		}
		more := bytes/g.extentSize - int64(len(p.pool.metadata))
		if more <= 0 || bytes%g.extentSize != 0 {
			return failure("lvextend", nil, "the metadata of pool %s/%s is not smaller than %d bytes", groupName, name, bytes)
		}
		// The spare grows with it.
		added, err := g.take("lvextend", 2*more)
		if err != nil {
			return err
		}
		p.pool.metadata = append(p.pool.metadata, added[:more]...)
		p.pool.spare = append(p.pool.spare, added[more:]...)
		g.seqno++
		return nil
	})
}

// Untag implements lvm.Thin.
func (f *Groups) Untag(ctx context.Context, groupName, name, tag string) error {
	return f.command(ctx, OpUntag, groupName, "lvchange", func(g *group) error {
		v := g.volumes[name]
		if v == nil {
			return failure("lvchange", lvm.ErrNotFound, "volume %s/%s", groupName, name)
		}
		v.tags = slices.DeleteFunc(v.tags, func(t string) bool { return t == tag })
		g.seqno++
		return nil
	})
}

// Tag implements lvm.Thin.
func (f *Groups) Tag(ctx context.Context, groupName string, volumes []string, tag string) error {
	return f.command(ctx, OpTag, groupName, "lvchange", func(g *group) error {
		for _, name := range volumes {
			v := g.volumes[name]
			if v == nil {
				return failure("lvchange", lvm.ErrNotFound, "volume %s/%s", groupName, name)
			}
			v.tags = append(v.tags, tag)
			g.seqno++
		}
		return nil
	})
}

// PoolStatus implements lvm.Thin.
func (f *Groups) PoolStatus(groupName, name string) (lvm.PoolStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g, v, err := f.active(groupName, name)
	if err != nil {
		return lvm.PoolStatus{}, err
	}
	p := v.pool
	if p == nil {
		return lvm.PoolStatus{}, fmt.Errorf("device %s/%s is not a thin pool", groupName, name)
	}
	if p.failed {
		return lvm.PoolStatus{Failed: true}, nil
	}
	s := lvm.PoolStatus{
		MetadataTotal: int64(len(p.metadata)) * g.extentSize / metadataBlock,
		MetadataUsed:  p.metadataUsed,
		DataTotal:     g.chunks(v), DataUsed: p.used,
		ReadOnly: p.readOnly, NeedsCheck: p.needsCheck, QueuesWhenFull: p.queues,
	}
	if s.MetadataUsed == 0 {
		s.MetadataUsed = 8 + p.used/64
	}
	s.OutOfData = s.DataUsed == s.DataTotal
	return s, nil
}

// SetPool changes what the kernel says of a pool: tests break it with this.
// Data counts cannot be changed; what volumes hold makes them.
func (f *Groups) SetPool(groupName, name string, s lvm.PoolStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.groups[groupName].volumes[name].pool
	p.metadataUsed, p.failed, p.readOnly = s.MetadataUsed, s.Failed, s.ReadOnly
	p.needsCheck, p.queues = s.NeedsCheck, s.QueuesWhenFull
}

// SetPoolZeroing makes a pool zero new blocks, or not.
func (f *Groups) SetPoolZeroing(groupName, name string, zero bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.groups[groupName]
	g.volumes[name].pool.keepsOld = !zero
	g.seqno++
}

// RemovePool removes a thin pool with all its volumes, as an administrator may.
func (f *Groups) RemovePool(groupName, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.groups[groupName]
	p := g.volumes[name]
	for other, v := range g.volumes {
		if v.thin != nil && v.thin.pool == p {
			delete(g.volumes, other)
		}
	}
	g.give(slices.Concat(p.extents, p.pool.metadata, p.pool.spare))
	delete(g.volumes, name)
	g.seqno++
}

// command is the frame of a command that changes a group.
func (f *Groups) command(ctx context.Context, op Op, groupName, command string, effect func(*group) error) error {
	if err := f.begin(ctx, op, groupName); err != nil {
		return err
	}
	f.mu.Lock()
	g, err := f.writable(command, groupName)
	if err == nil {
		err = effect(g)
	}
	f.mu.Unlock()
	if err != nil {
		return err
	}
	return f.end(op, groupName)
}

// make returns a volume that is not in the group yet.
func (g *group) make(command, groupName, name string, tags []string) (*volume, error) {
	if !lvm.ValidName(name) {
		return nil, failure(command, nil, "bad name %q", name)
	}
	if i := slices.IndexFunc(tags, func(t string) bool { return !lvm.ValidTag(t) }); i >= 0 {
		return nil, fmt.Errorf("tag %q is malformed", tags[i])
	}
	if g.volumes[name] != nil {
		return nil, failure(command, lvm.ErrExists, "volume %s/%s", groupName, name)
	}
	return &volume{
		uuid: fmt.Sprintf("fake-%s-%s", groupName, name), tags: slices.Clone(tags),
		created: time.Now().Truncate(time.Second),
	}, nil
}

// commit puts a volume into the group, if the metadata has room for it.
func (g *group) commit(f *Groups, name string, v *volume, steps uint64) error {
	g.volumes[name] = v
	if text := g.text(); text > g.metadataLimit {
		delete(g.volumes, name)
		if v.pool != nil {
			g.give(slices.Concat(v.extents, v.pool.metadata, v.pool.spare))
		}
		return failure("lvcreate", lvm.ErrNoSpace, "metadata of %d bytes exceeds %d", text, g.metadataLimit)
	}
	if !v.skipped() {
		f.minor++
		v.minor = f.minor
	}
	g.seqno += steps
	return nil
}

// accepts tells whether a pool takes one more volume.
func (g *group) accepts(p *volume) error {
	switch {
	case p.pool.readOnly || p.pool.failed || p.minor == 0:
		return failure("lvcreate", nil, "the pool cannot be changed")
	case p.pool.used == g.chunks(p):
		return failure("lvcreate", lvm.ErrNoSpace, "the pool is full")
	}
	return nil
}

func (g *group) extendThin(groupName, name string, extents int64) error {
	t := g.volumes[name].thin
	if extents*g.extentSize <= t.bytes {
		return failure("lvextend", nil, "volume %s/%s is not smaller than %d extents", groupName, name, extents)
	}
	t.bytes = extents * g.extentSize
	g.seqno++
	return nil
}

// release gives a thin volume's chunks back to its pool.
func (g *group) release(t *thin) {
	for at := range t.chunks {
		t.drop(at)
	}
}

// unmap gives the chunks that lie in a range back to the pool.
func (t *thin) unmap(off, length int64) {
	size := t.pool.pool.chunkSize
	for at := range t.chunks {
		if at*size >= off && (at+1)*size <= off+length {
			t.drop(at)
		}
	}
}

// drop gives one chunk back to the pool.
func (t *thin) drop(at int64) {
	c := t.chunks[at]
	if c.users--; c.users == 0 {
		t.pool.pool.used--
	}
	delete(t.chunks, at)
}

// reportThin completes the report of what has to do with thin pools.
func (g *group) reportThin(v *volume, lv *lvm.Volume) {
	switch {
	case v.pool != nil:
		lv.Attr.Type, lv.Attr.ZeroNew = 't', !v.pool.keepsOld
		lv.MetadataSize = int64(len(v.pool.metadata)) * g.extentSize
	case v.thin != nil:
		lv.Attr.Type, lv.Attr.SkipActivation = 'V', v.thin.skip
		lv.Size, lv.Segments = v.thin.bytes, 1
		for name, p := range g.volumes {
			if p == v.thin.pool {
				lv.Pool, lv.Attr.ZeroNew = name, !p.pool.keepsOld
			}
		}
		if g.volumes[v.thin.origin] != nil {
			lv.Origin = v.thin.origin
		}
	}
}

// size is a volume's size in bytes.
func (g *group) size(v *volume) int64 {
	if v.thin != nil {
		return v.thin.bytes
	}
	return int64(len(v.extents)) * g.extentSize
}

// chunks is how many chunks a pool has.
func (g *group) chunks(p *volume) int64 {
	return int64(len(p.extents)) * g.extentSize / p.pool.chunkSize
}

// read returns the pattern in the block at an offset; zero for zeroes.
func (g *group) read(v *volume, off int64) byte {
	if v.thin == nil {
		return g.dirty[g.block(v, off)]
	}
	size := v.thin.pool.pool.chunkSize
	if c := v.thin.chunks[off/size]; c != nil {
		return c.blocks[off%size/blockSize]
	}
	return 0
}

// write puts a pattern, or zeroes, into the block at an offset.
func (g *group) write(v *volume, off int64, pattern byte) error {
	if v.thin == nil {
		g.shadow(v, off, pattern)
		delete(g.noise, g.block(v, off))
		if pattern == 0 {
			delete(g.dirty, g.block(v, off))
		} else {
			g.dirty[g.block(v, off)] = pattern
		}
		return nil
	}
	p := v.thin.pool
	size := p.pool.chunkSize
	c := v.thin.chunks[off/size]
	if c == nil || c.users > 1 {
		if p.pool.used == g.chunks(p) {
			return errPoolFull
		}
		p.pool.used++
		fresh := &chunk{users: 1, blocks: map[int64]byte{}}
		if c != nil {
			c.users--
			fresh.blocks = maps.Clone(c.blocks)
		}
		c = fresh
		v.thin.chunks[off/size] = c
	}
	if pattern == 0 {
		delete(c.blocks, off%size/blockSize)
	} else {
		c.blocks[off%size/blockSize] = pattern
	}
	return nil
}
