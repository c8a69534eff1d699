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

// SetClass gives a class another size and other conditions.
func (s *Server) SetClass(name string, bytes int64, conditions ...*lvmdv1.Condition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disks.classes[name].Bytes, s.disks.classes[name].Conditions = bytes, conditions
	s.changes.publish(&lvmdv1.WatchResponse{Classes: s.disks.reports(name)})
}

// Resize changes the size of a class' group, as an administrator's vgextend would;
// zero removes the class.
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

// Put has lvmd report a volume as it is given, whether that was made here or not: as a disk, an
// administrator or a compromised node changes it. It replaces the one with its id.
func (s *Server) Put(v *lvmdv1.Volume) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v = proto.CloneOf(v)
	s.disks.volumes[v.GetId()] = v
	s.publish(v, nil)
}

// SetHealth says what is wrong with a volume: conditions of lvmd's, and what the node
// plugin found.
func (s *Server) SetHealth(id string, conditions, found []*lvmdv1.Condition) {
	s.alter(id, func(v *lvmdv1.Volume) { v.Conditions, v.Found = conditions, found })
}

// SetCopied makes the volume of a name look as one of which so much has been copied, in bytes, or,
// with -1, as one that is complete.
func (s *Server) SetCopied(name string, bytes int64) {
	s.alter(s.Volumes()[name].GetId(), func(v *lvmdv1.Volume) {
		v.State, v.CopiedBytes = lvmdv1.VolumeState_VOLUME_STATE_CREATING, bytes
		if bytes < 0 {
			v.State, v.CopiedBytes = lvmdv1.VolumeState_VOLUME_STATE_READY, 0
		}
	})
}

// Empty has the encrypted volume of a name lose its key and all that it held.
func (s *Server) Empty(name string, when time.Time) {
	s.alter(s.Volumes()[name].GetId(), func(v *lvmdv1.Volume) { v.EmptiedAt = timestamppb.New(when) })
}

// alter changes a volume without a call.
func (s *Server) alter(id string, do func(*lvmdv1.Volume)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := proto.CloneOf(s.disks.volumes[id])
	do(v)
	s.disks.volumes[id] = v
	s.publish(v, nil)
}
