package lvmdfake

import (
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
)

// changes are those of one process run of lvmd. The server's lock guards them.
type changes struct {
	epoch      string
	generation uint64
	log        []*lvmdv1.WatchResponse
	published  chan struct{} // closed and replaced at every change
}

func newChanges() changes { return changes{epoch: newID(), published: make(chan struct{})} }

func (c *changes) publish(r *lvmdv1.WatchResponse) {
	c.generation++
	r.Epoch, r.Generation = c.epoch, c.generation
	c.log = append(c.log, r)
	close(c.published)
	c.published = make(chan struct{})
}

// Watch implements the service.
func (s *Server) Watch(_ *lvmdv1.WatchRequest, stream lvmdv1.LVMD_WatchServer) error {
	s.mu.Lock()
	full := &lvmdv1.WatchResponse{
		Epoch: s.changes.epoch, Generation: s.changes.generation, Full: true,
		Classes: s.disks.allReports(), Volumes: s.disks.sorted(),
	}
	next := len(s.changes.log)
	s.mu.Unlock()
	if err := stream.Send(full); err != nil {
		return err
	}
	for {
		s.mu.Lock()
		if s.changes.epoch != full.GetEpoch() { // a call that has not noticed its end
			s.mu.Unlock()
			return Error(codes.Unavailable, names.ReasonCommandFailed, "lvmd was restarted")
		}
		pending, published := s.changes.log[next:], s.changes.published
		next = len(s.changes.log)
		s.mu.Unlock()
		for _, r := range pending {
			if err := stream.Send(r); err != nil {
				return err
			}
		}
		select {
		case <-published:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}
