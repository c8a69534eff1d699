package lvmd

import (
	"slices"
	"strings"

	"github.com/carve-csi/carve/pkg/lvm"
)

// resume has LVM finish what a command of ours left in the middle: between the
// suspension of a volume's device and its resumption, a command that was killed
// leaves a device on which everybody waits for ever. Activation loads what the
// metadata says and resumes. The caller has the group's turn.
//
// It is done after a command of ours failed and at no other time: a device that
// somebody else suspended is theirs.
func (s *Service) resume(g *group, found []lvm.Group) {
	s.model.mu.Lock()
	doubtful := g.doubtful
	s.model.mu.Unlock()
	if !doubtful {
		return
	}
	if s.anySuspended(found) {
		s.log.Warn("resuming devices that a killed command left suspended", "group", g.name)
		if err := s.lvm.Activate(s.work, []string{g.name}); err != nil {
			s.log.Error("suspended devices could not be resumed", "group", g.name, "error", err)
			return
		}
	}
	s.model.mu.Lock()
	g.doubtful = false
	s.model.mu.Unlock()
}

// doubt notes that a command of ours failed in a group.
func (s *Service) doubt(g *group) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	g.doubtful = true
}

// anySuspended tells whether a device of ours is suspended.
func (s *Service) anySuspended(found []lvm.Group) bool {
	for i := range found {
		if s.suspendedIn(&found[i]) {
			return true
		}
	}
	return false
}

// suspendedIn tells whether the kernel holds back I/O of a volume of ours, of a
// part of one, or of a thin pool, which our volumes draw from.
func (s *Service) suspendedIn(g *lvm.Group) bool {
	names, err := s.lvm.Suspended(g.Name)
	if err != nil {
		s.log.Warn("whether devices are suspended cannot be told", "group", g.Name, "error", err)
		return false
	}
	for _, name := range names {
		if slices.ContainsFunc(g.Volumes, func(lv lvm.Volume) bool {
			part, ok := strings.CutPrefix(name, lv.Name)
			return ok && (part == "" || part[0] == '_' || part[0] == '-') && (isOurs(lv.Tags) || lv.Attr.Type == poolType)
		}) {
			return true
		}
	}
	return false
}
