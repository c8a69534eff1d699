package inventory

import (
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/spec"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// Statistics are what is known, in numbers.
type Statistics struct {
	// Refused is true while what the configuration file says is not in force.
	Refused bool
	// Classes are the configured classes, in order.
	Classes []ClassStatistics
	// Volumes counts volumes, and Unhealthy those with a condition.
	Volumes   map[ClassPhase]int
	Unhealthy map[ClassCondition]int
	// Present are the volumes that were made and are not deleted, in no order.
	Present []VolumeStatistics
	// Groups are by name.
	Groups map[string]GroupStatistics
}

// ClassStatistics are those of one class.
type ClassStatistics struct {
	Name string
	// Reported is nil while the class is not offered.
	Reported *lvmdv1.DeviceClass
}

// VolumeStatistics are those of one volume. Size is in bytes; Device is empty while the
// volume has none.
type VolumeStatistics struct {
	ID, Group string
	Ident     spec.Identity
	Size      int64
	Device    lvm.Device
}

// ClassPhase is a class, and the phase of volumes in it.
type ClassPhase struct {
	Class string
	Phase spec.Phase
}

// ClassCondition is a class, and the type of a condition of volumes in it.
type ClassCondition struct{ Class, Condition string }

// GroupStatistics are those of one group. Sizes are in bytes.
type GroupStatistics struct {
	Responding              bool
	Backlog, Total, Free    int64
	Metadata, MetadataLimit int64
	Pools                   []PoolStatistics
}

// PoolStatistics are those of one thin pool. Sizes are in bytes.
type PoolStatistics struct {
	Name string
	// Status is what the kernel said last, if Known is true.
	Status lvm.PoolStatus
	Known  bool
}

// Statistics returns what is known, in numbers.
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
