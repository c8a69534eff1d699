package lvmd

import (
	"slices"

	"github.com/carve-csi/carve/pkg/lvm"
)

// mend makes devices right that a command of ours left in the middle of a change
// when it was killed: a device that is suspended, on which everybody waits for
// ever, and one that has another table than the metadata says, so that I/O fails
// within the volume, or reaches beyond it, into what others are given. It tells
// whether it did anything. The caller has the group's turn.
//
// It is done after a command of ours failed and at no other time but at the start:
// what somebody else does to a device is theirs.
func (s *Service) mend(g *group, found []lvm.Group) (mended bool) {
	s.model.mu.Lock()
	doubtful := g.doubtful
	s.model.mu.Unlock()
	if !doubtful {
		return false
	}
	for i := range found {
		did, err := s.mendIn(&found[i])
		mended = mended || did
		if err != nil {
			return mended // It is tried again, see differs.
		}
	}
	s.model.mu.Lock()
	g.doubtful = false
	s.model.mu.Unlock()
	return mended
}

// mendIn mends what is torn of a scanned group, and tells whether that was
// anything.
func (s *Service) mendIn(g *lvm.Group) (mended bool, err error) {
	torn := s.tornIn(g)
	if len(torn) == 0 {
		return false, nil
	}
	s.log.Warn("mending devices that a killed command left in the middle of a change", "group", g.Name, "volumes", torn)
	if err := s.lvm.Mend(s.work, g.Name, torn); err != nil {
		s.log.Error("devices could not be mended; it will be tried again", "group", g.Name, "volumes", torn, "error", err)
		return true, err
	}
	return true, nil
}

// doubt notes that a command of ours failed in a group.
func (s *Service) doubt(g *group) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	g.doubtful = true
}

// tornIn names the volumes of ours, and the thin pools, which our volumes draw
// from, of which a device is not what the metadata says.
func (s *Service) tornIn(g *lvm.Group) []string {
	names, err := s.lvm.Torn(g.Name)
	if err != nil {
		s.log.Warn("whether devices are what the metadata says cannot be told", "group", g.Name, "error", err)
		return nil
	}
	if len(names) == 0 {
		return nil
	}
	pools := s.poolsIn(g)
	var torn []string
	for _, lv := range g.Volumes {
		if (isOurs(lv.Tags) || pools[lv.Name] && !lv.Attr.SkipActivation) &&
			slices.ContainsFunc(names, func(name string) bool { return lvm.IsOf(name, lv.Name) }) {
			torn = append(torn, lv.Name)
		}
	}
	return torn
}
