package thinpool

import (
	"strings"
	"testing"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm/layout"
)

func TestAPoolGrowsByAStepAsFarAsThereIsSpace(t *testing.T) {
	const extent = int64(4 << 20)
	linear, mirror := layout.Layout{Type: layout.Linear}, layout.Layout{Type: layout.RAID1, Mirrors: 1}
	pool := func(adjust func(*Pool)) Pool {
		p := Pool{
			Group: "g", Total: 1000, ExtentSize: extent, Free: 100, DataDue: true, Extents: 50, Metadata: 2 * extent,
			DataLayout: linear, MetadataLayout: linear, AutoExtend: config.AutoExtend{Step: config.Amount{Bytes: 10 * extent}},
		}
		if adjust != nil {
			adjust(&p)
		}
		return p
	}
	for _, c := range []struct {
		name  string
		pool  Pool
		want  Growth
		stuck string
	}{
		{"by its step", pool(nil), Growth{Extents: 60}, ""},
		{"by what is free, if that is less", pool(func(p *Pool) { p.Free = 3 }), Growth{Extents: 53}, ""},
		{"up to its limit", pool(func(p *Pool) { p.AutoExtend.Limit = config.Amount{Bytes: 54*extent + 1} }), Growth{Extents: 54}, ""},
		{"not beyond its limit", pool(func(p *Pool) { p.AutoExtend.Limit = config.Amount{Bytes: 50 * extent} }), Growth{}, "limit is reached"},
		{"not without free space", pool(func(p *Pool) { p.Free = 0 }), Growth{}, "no free space left beside"},
		{"by what its devices have", pool(func(p *Pool) { p.DataLayout, p.DataGrowth = mirror, 4 }), Growth{Extents: 54}, ""},
		{"not when its devices are full", pool(func(p *Pool) { p.DataLayout = mirror }), Growth{}, "the devices that it can grow on"},
		{"the metadata to twice its size", pool(func(p *Pool) { p.DataDue, p.MetadataDue = false, true }), Growth{Metadata: 4 * extent}, ""},
		{"the metadata with its spare", pool(func(p *Pool) { p.DataDue, p.MetadataDue, p.Free = false, true, 1 }), Growth{}, "more metadata"},
		{"the metadata by what is left", pool(func(p *Pool) { p.DataDue, p.MetadataDue, p.Free = false, true, 3 }), Growth{Metadata: 3 * extent}, ""},
		{"mirrored metadata by what is left", pool(func(p *Pool) {
			p.DataDue, p.MetadataDue, p.Metadata, p.MetadataLayout, p.MetadataGrowth, p.Free = false, true, 4*extent, mirror, 3, 8
		}), Growth{Metadata: 6 * extent}, ""},
		{"mirrored metadata by what its devices have", pool(func(p *Pool) {
			p.DataDue, p.MetadataDue, p.Metadata, p.MetadataLayout, p.MetadataGrowth = false, true, 4*extent, mirror, 1
		}), Growth{Metadata: 5 * extent}, ""},
		{"the data first", pool(func(p *Pool) { p.MetadataDue, p.Free = true, 11 }), Growth{Extents: 60}, "more metadata"},
		{"the metadata although the data cannot", pool(func(p *Pool) {
			p.MetadataDue, p.DataLayout = true, mirror
		}), Growth{Metadata: 4 * extent}, "the devices that it can grow on"},
		{"the metadata no more than LVM allows", pool(func(p *Pool) {
			p.DataDue, p.MetadataDue, p.Metadata = false, true, maxMetadata/extent*extent
		}), Growth{}, "as large as can be"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := c.pool.Grow()
			if got.Extents != c.want.Extents || got.Metadata != c.want.Metadata || !strings.Contains(got.Stuck, c.stuck) || (got.Stuck == "") != (c.stuck == "") {
				t.Errorf("%+v, want %+v, stuck %q", got, c.want, c.stuck)
			}
		})
	}
}
