package lvmdfake

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// SetClasses replaces the classes.
func (s *Server) SetClasses(classes ...Class) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.disks.classes
	s.disks.classes = byName(classes)
	maps.DeleteFunc(before, func(name string, _ *Class) bool { return s.disks.classes[name] != nil })
	s.changes.publish(&lvmdv1.WatchResponse{Classes: s.disks.allReports(), RemovedClasses: slices.Sorted(maps.Keys(before))})
}

// SetClass changes the size and conditions of a class.
func (s *Server) SetClass(name string, bytes int64, conditions ...*lvmdv1.Condition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disks.classes[name].Bytes, s.disks.classes[name].Conditions = bytes, conditions
	s.changes.publish(&lvmdv1.WatchResponse{Classes: s.disks.reports(name)})
}

// Resize changes the size of a class' group, as vgextend does; zero removes the class.
func (s *Server) Resize(class string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes == 0 {
		delete(s.disks.classes, class)
		s.changes.publish(&lvmdv1.WatchResponse{RemovedClasses: []string{class}})
		return
	}
	if s.disks.classes[class] == nil {
		s.disks.classes[class] = &Class{Name: class}
	}
	for _, c := range s.disks.classes {
		if c.group() == s.disks.classes[class].group() {
			c.Bytes = bytes
		}
	}
	s.changes.publish(&lvmdv1.WatchResponse{Classes: s.disks.reports(class)})
}

// Put inserts or replaces a volume in the reports, by its id, as a disk, an administrator or a
// compromised node may.
func (s *Server) Put(v *lvmdv1.Volume) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v = proto.CloneOf(v)
	s.disks.volumes[v.GetId()] = v
	s.publish(v, nil)
}

// SetHealth sets the conditions of lvmd and of the node plugin on a volume.
func (s *Server) SetHealth(id string, conditions, found []*lvmdv1.Condition) {
	s.alter(id, func(v *lvmdv1.Volume) { v.Conditions, v.Found = conditions, found })
}

// SetCopied makes the named volume an unfinished copy of the given bytes, or a complete one with
// -1.
func (s *Server) SetCopied(name string, bytes int64) {
	s.alter(s.Volumes()[name].GetId(), func(v *lvmdv1.Volume) {
		v.State, v.CopiedBytes = lvmdv1.VolumeState_VOLUME_STATE_CREATING, bytes
		if bytes < 0 {
			v.State, v.CopiedBytes = lvmdv1.VolumeState_VOLUME_STATE_READY, 0
		}
	})
}

// Empty makes the named encrypted volume lose its key and data.
func (s *Server) Empty(name string, when time.Time) {
	s.alter(s.Volumes()[name].GetId(), func(v *lvmdv1.Volume) { v.EmptiedAt = timestamppb.New(when) })
}

func (s *Server) alter(id string, do func(*lvmdv1.Volume)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := proto.CloneOf(s.disks.volumes[id])
	do(v)
	s.disks.volumes[id] = v
	s.publish(v, nil)
}
