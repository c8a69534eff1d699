package lvmfake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// The commands on thin pools and adoption.
const (
	OpCreatePool         Op = "create pool"
	OpBeginPoolCheck     Op = "begin pool check"
	OpCheckPool          Op = "check pool"
	OpMakePool           Op = "make pool"
	OpCreateThin         Op = "create thin"
	OpSnapshot           Op = "snapshot"
	OpExtendPool         Op = "extend pool"
	OpExtendPoolMetadata Op = "extend pool metadata"
	OpUntag              Op = "untag"
	OpTag                Op = "tag"
	OpRename             Op = "rename"
	OpRetag              Op = "retag"
)

// metadataBlock is the kernel's unit of a pool's metadata.
const metadataBlock = 4096

var errPoolFull = errors.New("no space left on device")

type pool struct {
	metadata, spare []int64
	metadataShape   *shape
	chunkSize       int64
	keepsOld        bool // does not zero new blocks
	used            int64
	// metadataUsed may be set by SetPool; zero means as much as the chunks take.
	metadataUsed       int64
	readOnly, failed   bool
	needsCheck, queues bool
}

type thin struct {
	pool   *volume
	origin string
	bytes  int64
	skip   bool
	chunks map[int64]*chunk
}

// chunk is shared by thin volumes until one writes to it.
type chunk struct {
	users  int
	blocks []byte
}

func (v *volume) skipped() bool { return v.thin != nil && v.thin.skip }

func (f thinPools) BeginPoolCheck(ctx context.Context, group, pool string) error {
	return f.poolCommand(ctx, OpBeginPoolCheck, group, pool)
}

func (f thinPools) CheckPool(ctx context.Context, group, pool string) (enough bool, err error) {
	err = f.poolCommand(ctx, OpCheckPool, group, pool)
	return err == nil, err
}

func (f thinPools) poolCommand(ctx context.Context, op Op, group, pool string) error {
	if err := f.begin(ctx, op, group); err != nil {
		return err
	}
	defer f.lock()()
	if g := f.groups[group]; g == nil || g.volumes[pool] == nil {
		return failure("lvchange", lvm.ErrNotFound, "thin pool %s/%s", group, pool)
	}
	return nil
}

func (f thinPools) CreatePool(ctx context.Context, o lvm.PoolOptions) error {
	return f.command(ctx, OpCreatePool, o.Group, "lvcreate", func(g *group) error {
		if o.Extents < 1 || o.MetadataBytes < 1 || o.MetadataBytes%g.extentSize != 0 || o.ChunkSize%(64<<10) != 0 || o.ChunkSize < 1 {
			return failure("lvcreate", nil, "bad sizes %+v", o)
		}
		p := &pool{chunkSize: o.ChunkSize}
		v, err := g.make(o.Group, o.Pool, o.Tags)
		if err != nil {
			return err
		}
		took, err := g.take("lvcreate", o.Extents+2*(o.MetadataBytes/g.extentSize))
		if err != nil {
			return err
		}
		n := o.MetadataBytes / g.extentSize
		v.pool, p.metadata, p.spare, v.extents = p, took[:n], took[n:2*n], took[2*n:]
		return g.commit(f.machine, o.Pool, v, 3)
	})
}

func (f thinPools) MakePool(ctx context.Context, o lvm.PoolOptions, metadata string) error {
	return f.command(ctx, OpMakePool, o.Group, "lvconvert", func(g *group) error {
		data, meta := g.volumes[o.Pool], g.volumes[metadata]
		if data == nil || meta == nil {
			return failure("lvconvert", lvm.ErrNotFound, "volumes %s and %s of %s", o.Pool, metadata, o.Group)
		}
		spare, err := g.take("lvconvert", int64(len(meta.extents)))
		if err != nil {
			return err
		}
		delete(g.volumes, metadata)
		data.pool = &pool{chunkSize: o.ChunkSize, metadata: meta.extents, metadataShape: meta.shape, spare: spare}
		g.seqno += 3
		return nil
	})
}

func (f thinPools) CreateThin(ctx context.Context, o lvm.ThinOptions) error {
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
		v, err := g.make(o.Group, o.Volume, o.Tags)
		if err != nil {
			return err
		}
		v.thin = &thin{pool: p, bytes: o.Bytes, chunks: map[int64]*chunk{}}
		return g.commit(f.machine, o.Volume, v, lvm.ThinSteps)
	})
}

func (f thinPools) Snapshot(ctx context.Context, o lvm.SnapshotOptions) error {
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
		v, err := g.make(o.Group, o.Volume, o.Tags)
		if err != nil {
			return err
		}
		v.thin = &thin{
			pool: origin.thin.pool, origin: o.Origin, bytes: origin.thin.bytes, skip: o.Inactive,
			chunks: maps.Clone(origin.thin.chunks),
		}
		if err := g.commit(f.machine, o.Volume, v, lvm.ThinSteps); err != nil {
			return err
		}
		for _, c := range v.thin.chunks {
			c.users++
		}
		return nil
	})
}

func (f thinPools) ExtendPool(ctx context.Context, groupName, name string, extents int64, on ...layout.Share) error {
	return f.command(ctx, OpExtendPool, groupName, "lvextend", func(g *group) error {
		p := g.volumes[name]
		if p == nil || p.pool == nil {
			return failure("lvextend", lvm.ErrNotFound, "pool %s/%s", groupName, name)
		}
		more := extents - int64(len(p.extents))
		if more <= 0 {
			return failure("lvextend", nil, "pool %s/%s is not smaller than %d extents", groupName, name, extents)
		}
		if err := g.layOut("lvextend", groupName, p, p.layout(), more, on); err != nil {
			return err
		}
		g.seqno++
		return nil
	})
}

func (f thinPools) ExtendPoolMetadata(ctx context.Context, groupName, name string, bytes int64, on ...layout.Share) error {
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
		added, err := g.take("lvextend", more)
		if err != nil {
			return err
		}
		meta := volume{extents: p.pool.metadata, shape: p.pool.metadataShape}
		if err := g.layOut("lvextend", groupName, &meta, meta.layout(), more, on); err != nil {
			g.give(added)
			return err
		}
		p.pool.metadata, p.pool.metadataShape = meta.extents, meta.shape
		p.pool.spare = append(p.pool.spare, added...)
		g.seqno++
		return nil
	})
}

// make does not add the volume to the group.
func (g *group) make(groupName, name string, tags []string) (*volume, error) {
	if !ondisk.ValidName(name) {
		return nil, failure("lvcreate", nil, "bad name %q", name)
	}
	if i := slices.IndexFunc(tags, func(t string) bool { return !ondisk.ValidTag(t) }); i >= 0 {
		return nil, fmt.Errorf("tag %q is malformed", tags[i])
	}
	if g.volumes[name] != nil {
		return nil, failure("lvcreate", lvm.ErrExists, "volume %s/%s", groupName, name)
	}
	return &volume{
		uuid: fmt.Sprintf("fake-%s-%s", groupName, name), tags: slices.Clone(tags),
		created: time.Now().Truncate(time.Second),
	}, nil
}

func (g *group) commit(f *machine, name string, v *volume, steps uint64) error {
	g.volumes[name] = v
	if text := g.text(); text > g.metadataLimit {
		delete(g.volumes, name)
		if v.pool != nil {
			g.give(slices.Concat(v.pool.metadata, v.pool.spare))
		}
		g.give(v.all())
		return failure("lvcreate", lvm.ErrNoSpace, "metadata of %d bytes exceeds %d", text, g.metadataLimit)
	}
	if !v.skipped() {
		f.minor++
		v.minor = f.minor
	}
	g.seqno += steps
	return nil
}

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

func (g *group) release(t *thin) {
	for at := range t.chunks {
		t.drop(at)
	}
}

func (t *thin) unmap(off, length int64) {
	size := t.pool.pool.chunkSize
	for at := range t.chunks {
		if at*size >= off && (at+1)*size <= off+length {
			t.drop(at)
		}
	}
}

func (t *thin) drop(at int64) {
	c := t.chunks[at]
	if c.users--; c.users == 0 {
		t.pool.pool.used--
	}
	delete(t.chunks, at)
}

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

func (g *group) size(v *volume) int64 {
	if v.thin != nil {
		return v.thin.bytes
	}
	return int64(len(v.extents)) * g.extentSize
}

func (g *group) chunks(p *volume) int64 {
	return int64(len(p.extents)) * g.extentSize / p.pool.chunkSize
}

func (g *group) read(v *volume, block int64) byte {
	if v.thin == nil {
		return g.dirty.get(g.block(v, block*blockSize))
	}
	size := v.thin.pool.pool.chunkSize / blockSize
	if c := v.thin.chunks[block/size]; c != nil {
		return c.blocks[block%size]
	}
	return 0
}

func (g *group) write(v *volume, first, n int64, pattern byte) error {
	if v.thin != nil {
		return g.writeThin(v.thin, first, n, pattern)
	}
	for at, some := range runs(first, n, g.extentSize/blockSize) {
		block := g.block(v, at*blockSize)
		g.dirty.put(block, some, pattern)
		g.noise.put(block, some, 0)
		extent := at * blockSize / g.extentSize
		for _, shadow := range v.shadows(extent) {
			g.dirty.put(block+(shadow-v.extents[extent])*g.extentSize/blockSize, some, pattern)
		}
	}
	return nil
}

func (g *group) writeThin(t *thin, first, n int64, pattern byte) error {
	size := t.pool.pool.chunkSize / blockSize
	for at, some := range runs(first, n, size) {
		c := t.chunks[at/size]
		if c == nil || c.users > 1 {
			if t.pool.pool.used == g.chunks(t.pool) {
				return errPoolFull
			}
			t.pool.pool.used++
			fresh := &chunk{users: 1, blocks: make([]byte, size)}
			if c != nil {
				c.users--
				copy(fresh.blocks, c.blocks)
			}
			c = fresh
			t.chunks[at/size] = c
		}
		fill(c.blocks[at%size:at%size+some], pattern)
	}
	return nil
}

// count is store.count for a volume.
func (g *group) count(v *volume) (blocks int, pattern byte) {
	add := func(more int, of byte) {
		if more > 0 {
			blocks, pattern = blocks+more, of
		}
	}
	if v.thin != nil {
		for _, c := range v.thin.chunks {
			add(dirty(c.blocks))
		}
		return blocks, pattern
	}
	for _, e := range v.extents {
		add(g.dirty.count(e*g.extentSize/blockSize, g.extentSize/blockSize))
	}
	return blocks, pattern
}
