package inventory

import (
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/spec"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// Statistics count and measure the inventory.
type Statistics struct {
	// Refused is true while the configuration file is not in force.
	Refused bool
	// Classes are in the configuration's order.
	Classes []ClassStatistics
	// Unhealthy counts the volumes with a condition.
	Volumes   map[ClassPhase]int
	Unhealthy map[ClassCondition]int
	// Present are created and not deleted, in no order.
	Present []VolumeStatistics
	// Groups are by name.
	Groups map[string]GroupStatistics
}

// ClassStatistics are those of a class.
type ClassStatistics struct {
	Name string
	// Reported is nil while the class is not offered.
	Reported *lvmdv1.DeviceClass
}

// VolumeStatistics are those of a volume. Size is in bytes; Device is empty while the volume has
// none.
type VolumeStatistics struct {
	ID, Group string
	Ident     spec.Identity
	Size      int64
	Device    lvm.Device
}

// ClassPhase is the key of a count of volumes.
type ClassPhase struct {
	Class string
	Phase spec.Phase
}

// ClassCondition is the key of a count of volumes.
type ClassCondition struct{ Class, Condition string }

// GroupStatistics are those of a group, in bytes.
type GroupStatistics struct {
	Responding              bool
	Backlog, Total, Free    int64
	Metadata, MetadataLimit int64
	Pools                   []PoolStatistics
}

// PoolStatistics are those of a thin pool.
type PoolStatistics struct {
	Name string
	// Status is the kernel's last one; Known is false if it reported none.
	Status lvm.PoolStatus
	Known  bool
}

// Statistics returns the inventory's current statistics.
func (m *Inventory) Statistics() *Statistics {
	m.lock()
	defer m.unlock()
	s := &Statistics{
		Refused: m.refused != "", Volumes: map[ClassPhase]int{}, Unhealthy: map[ClassCondition]int{},
		Groups: map[string]GroupStatistics{},
	}
	for _, c := range m.classes {
		s.Classes = append(s.Classes, ClassStatistics{c.Name, c.reported})
		for _, p := range []spec.Phase{spec.Creating, spec.Ready, spec.Deleting, spec.Unfinished} {
			s.Volumes[ClassPhase{c.Name, p}] = 0
		}
	}
	backlog := map[*Group]int64{}
	for _, v := range m.volumes {
		if v.rec.Ident.Snapshot {
			continue
		}
		s.Volumes[ClassPhase{v.rec.Ident.Class, v.rec.Phase}]++
		if v.rec.Phase == spec.Ready || v.rec.Phase == spec.DataLost {
			s.Present = append(s.Present, VolumeStatistics{v.rec.ID, v.group.name, v.rec.Ident, v.bytes() - v.rec.Ident.HeaderBytes(), v.device})
		}
		for _, c := range v.allConditions() {
			s.Unhealthy[ClassCondition{v.rec.Ident.Class, c.GetType()}]++
		}
		if v.rec.Phase == spec.Deleting && v.lifecycle.state != Wiped {
			backlog[v.group] += v.bytes() - v.rec.Wiped
		}
	}
	for name, g := range m.groups {
		var pools []PoolStatistics
		for _, p := range g.pools {
			if p.present {
				pools = append(pools, PoolStatistics{p.name, p.status, p.known})
			}
		}
		s.Groups[name] = GroupStatistics{
			Responding: g.unresponsive.IsZero(), Backlog: backlog[g],
			Total: g.info.Extents * g.info.ExtentSize, Free: g.allocatable * g.info.ExtentSize,
			Metadata: g.metadata.Size, MetadataLimit: g.metadata.Limit,
			Pools: pools,
		}
	}
	return s
}
