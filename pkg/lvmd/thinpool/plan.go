package thinpool

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/quantity"
)

const (
	// manyChunksMetadata is the metadata from which on larger chunks are used. A new chunk
	// is zeroed when a part of it is written: small ones cost least.
	manyChunksMetadata = 128 << 20
	// chunkMetadata is what a chunk's mapping takes of the metadata, as LVM
	// reckons.
	chunkMetadata = 64
	// minMetadata and maxMetadata are LVM's bounds.
	minMetadata = 2 << 20
	// poolRetry is after what time a pool that could not be made is tried again.
	poolRetry   = time.Minute
	maxMetadata = 15<<30 + 800<<20
)

// options are the sizes of a pool that is made. A percentage is of what the group can
// hold in the pool's layout, and includes the metadata and its spare; bytes are those of the
// data.
func options(t *config.ThinPool, g *lvm.Group) lvm.PoolOptions {
	whole, unit, l := g.Extents, int64(1), dataLayout(t, g)
	if !l.IsLinear() {
		sizes := make([]int64, len(g.Devices))
		for i, d := range g.Devices {
			sizes[i] = d.Extents
		}
		whole, unit = l.Available(sizes, 0), l.Unit()
	}
	data := t.Size.Of(whole * g.ExtentSize)
	chunk := max(int64(config.MinChunk), t.ChunkSize)
	for t.ChunkSize == 0 && chunk < config.MaxChunk && data/chunk*chunkMetadata > manyChunksMetadata {
		chunk *= 2
	}
	metadata := t.MetadataSize
	if metadata == 0 {
		// Snapshots and overprovisioned volumes have mappings of their own.
		metadata = min(maxMetadata, max(minMetadata, config.MulDiv(data/chunk*chunkMetadata, t.Overprovisioning, 100)))
	}
	metadataExtents := (min(metadata, maxMetadata) + g.ExtentSize - 1) / g.ExtentSize
	o := lvm.PoolOptions{
		Group: g.Name, Pool: t.Pool, Extents: data / g.ExtentSize, MetadataBytes: metadataExtents * g.ExtentSize, ChunkSize: chunk,
		Tags: []string{Tag},
	}
	if t.Size.Percent > 0 {
		o.Extents -= 2 * metadataExtents
	}
	o.Extents -= o.Extents % unit
	if t.Size.Percent < 100 || l.IsLinear() {
		return o
	}
	// The metadata may lie on other devices than the data leaves free.
	for _, _, fits := place(t, o, g); !fits && o.Extents > 0; _, _, fits = place(t, o, g) {
		o.Extents -= unit
	}
	return o
}

// place chooses where a pool's data and metadata lie. fits is false when there is no space
// for them and for the spare.
func place(t *config.ThinPool, o lvm.PoolOptions, g *lvm.Group) (data, metadata []layout.Share, fits bool) {
	free, spare := g.Free(), o.MetadataBytes/g.ExtentSize
	if data = dataLayout(t, g).Place(free, o.Extents); data == nil {
		return nil, nil, false
	}
	free = layout.Without(free, data)
	// On devices of the data, if they have the space: the pool depends on no more then.
	own := slices.DeleteFunc(slices.Clone(free), func(f layout.Free) bool {
		return !slices.ContainsFunc(data, func(s layout.Share) bool { return s.Device == f.Device })
	})
	if metadata = metadataLayout(t).Place(own, spare); metadata == nil {
		metadata = metadataLayout(t).Place(free, spare)
	}
	if metadata == nil {
		return nil, nil, false
	}
	free = layout.Without(free, metadata)
	return data, metadata, layout.Layout{Type: layout.Linear}.Largest(layout.Counts(free), 0) >= spare
}

// layoutProblem says why a pool cannot be made in a group, or nothing.
func layoutProblem(dc *config.DeviceClass, o lvm.PoolOptions, g *lvm.Group) error {
	t := dc.Thin
	if !dataLayout(t, g).IsLinear() {
		if t.Layout.IsRAID() && g.ExtentSize < layout.MinRAIDExtent {
			return dc.Problem("thin.layout.type", string(t.Layout), "volume group "+g.Name+" has extents of less than 512 KiB, in which the bookkeeping of RAID does not fit; make them larger (vgchange --physicalextentsize 4m "+g.Name+")")
		}
		if t.StripeSize > g.ExtentSize {
			return dc.Problem("thin.layout.stripeSize", strconv.FormatInt(t.StripeSize, 10), fmt.Sprintf("more than an extent of volume group %q, which has %s", g.Name, quantity.Bytes(g.ExtentSize)))
		}
		if _, _, fits := place(t, o, g); !fits {
			return dc.Problem("thin.size", "", fmt.Sprintf(
				"a pool of %s of type %s, with %s of metadata and as much again for its repair, does not fit into what is free on the %d devices of volume group %q",
				quantity.Bytes(o.Extents*g.ExtentSize), t.Layout, quantity.Bytes(o.MetadataBytes), len(g.Devices), g.Name))
		}
		return nil
	}
	if need, free := o.Extents+2*(o.MetadataBytes/g.ExtentSize), g.Allocatable(); need > free {
		return dc.Problem("thin.size", "", fmt.Sprintf(
			"a pool of %s, with %s of metadata and as much again for its repair, needs %s of volume group %q, of which %s are free",
			quantity.Bytes(o.Extents*g.ExtentSize), quantity.Bytes(o.MetadataBytes), quantity.Bytes(need*g.ExtentSize), g.Name, quantity.Bytes(free*g.ExtentSize)))
	}
	return nil
}

// metadataName is what the volume is called that becomes a pool's metadata.
func metadataName(pool string) string { return pool + ".metadata" }

// dataLayout is how a pool's data lies that lvmd makes in a group as it is now.
func dataLayout(t *config.ThinPool, g *lvm.Group) layout.Layout {
	if t.Stripes == config.AllDevices {
		return g.Striped(t.StripeSize)
	}
	return layout.Layout{Type: layout.Type(t.Layout), Stripes: t.Stripes, StripeSize: t.StripeSize, Mirrors: t.Mirrors}
}

// metadataLayout is how its metadata lies: mirrored where the data is. There is too little of
// it for stripes.
func metadataLayout(t *config.ThinPool) layout.Layout {
	if t.Layout.IsRAID() {
		return layout.Layout{Type: layout.RAID1, Mirrors: t.Mirrors}
	}
	return layout.Layout{Type: layout.Linear}
}
