package lvmd

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/lvm"
)

// failingFor is for how long a class says that a disk failed a command, unless
// another command goes well.
const failingFor = time.Minute

// noteDisks takes down how a command that changes a group ended, or the making of
// a volume, as far as that says something of the group's disks: one that is read
// well and takes no writes shows in nothing else.
func (s *Service) noteDisks(g *group, err error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	before := g.failing
	switch {
	case err == nil:
		g.failing = time.Time{}
	case errors.Is(err, lvm.ErrDeviceMissing), errors.Is(err, unix.EIO):
		g.failing = time.Now()
	}
	if g.failing.IsZero() != before.IsZero() {
		s.model.publish(g)
	}
}

// forgive takes back what noteDisks told when it is long ago: whether a disk
// takes writes again, only a write can tell, and none is made for that alone.
func (s *Service) forgive(g *group) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if !g.failing.IsZero() && time.Since(g.failing) > s.failingFor {
		g.failing = time.Time{}
		s.model.publish(g)
	}
}
