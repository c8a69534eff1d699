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
	// manyChunksMetadata, in bytes, is the size of the metadata above which to use larger chunks. A
	// small chunk costs least: a write to a part of a new one zeroes all of it.
	manyChunksMetadata = 128 << 20
	// chunkMetadata is LVM's estimate of a chunk's mapping, in bytes.
	chunkMetadata = 64
	// minMetadata and maxMetadata are LVM's bounds.
	minMetadata = 2 << 20
	// poolRetry is the delay after a failure to make a pool.
	poolRetry   = time.Minute
	maxMetadata = 15<<30 + 800<<20
)

// options computes the sizes of a new pool. A percentage refers to the group's capacity in the
// pool's layout, metadata and spare included; a size in bytes is the data's.
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
	// The data may leave no device with enough space for the metadata.
	for _, _, fits := place(t, o, g); !fits && o.Extents > 0; _, _, fits = place(t, o, g) {
		o.Extents -= unit
	}
	return o
}

// place chooses the devices of a pool's data and metadata. fits is false without space for these
// and for the spare.
func place(t *config.ThinPool, o lvm.PoolOptions, g *lvm.Group) (data, metadata []layout.Share, fits bool) {
	free, spare := g.Free(), o.MetadataBytes/g.ExtentSize
	if data = dataLayout(t, g).Place(free, o.Extents); data == nil {
		return nil, nil, false
	}
	free = layout.Without(free, data)
	// Prefer devices of the data, so that the pool depends on no others.
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

// metadataName names the volume that becomes a pool's metadata.
func metadataName(pool string) string { return pool + ".metadata" }

// dataLayout depends on the group's current devices.
func dataLayout(t *config.ThinPool, g *lvm.Group) layout.Layout {
	if t.Stripes == config.AllDevices {
		return g.Striped(t.StripeSize)
	}
	return layout.Layout{Type: layout.Type(t.Layout), Stripes: t.Stripes, StripeSize: t.StripeSize, Mirrors: t.Mirrors}
}

// metadataLayout mirrors the metadata of RAID pools; it is too small for stripes.
func metadataLayout(t *config.ThinPool) layout.Layout {
	if t.Layout.IsRAID() {
		return layout.Layout{Type: layout.RAID1, Mirrors: t.Mirrors}
	}
	return layout.Layout{Type: layout.Linear}
}
