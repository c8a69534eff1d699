package lvmd

import (
	"github.com/prometheus/client_golang/prometheus"
)

var (
	descThinData     = desc("thin_data_percent", "How much of the thin pool's data is used.", "group", "pool")
	descThinMetadata = desc("thin_metadata_percent", "How much of the thin pool's metadata is used.", "group", "pool")
	descThinSize     = desc("thin_data_bytes", "Size of the thin pool's data.", "group", "pool")
	descSnapshots    = desc("snapshots", "Snapshots by device class.", "class")
	descThinVirtual  = desc("thin_virtual_bytes", "What the thin pool's volumes and snapshots have in sum.", "group", "pool")
)

// collectThin reports the thin pools. The caller holds the lock.
func (m *model) collectThin(gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	snapshots := map[string]int{}
	for _, c := range m.classes {
		if c.Thin != nil {
			snapshots[c.Name] = 0
		}
	}
	for _, v := range m.volumes {
		if v.rec.Ident.Snapshot && v.rec.Phase != deleting {
			snapshots[v.rec.Ident.Class]++
		}
	}
	for class, n := range snapshots {
		gauge(descSnapshots, float64(n), class)
	}
	for _, g := range m.groups {
		for _, p := range g.pools {
			if !p.present {
				continue
			}
			gauge(descThinSize, float64(p.extents*g.info.ExtentSize), g.name, p.name)
			gauge(descThinVirtual, float64(p.virtual*g.info.ExtentSize), g.name, p.name)
			if !p.known || p.status.Failed {
				continue // A pool that does not answer has no percentages.
			}
			gauge(descThinData, 100*float64(p.status.DataUsed)/float64(p.status.DataTotal), g.name, p.name)
			gauge(descThinMetadata, 100*float64(p.status.MetadataUsed)/float64(p.status.MetadataTotal), g.name, p.name)
		}
	}
}
