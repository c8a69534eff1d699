package lvmd

import (
	"context"
	"regexp"
	"slices"

	"google.golang.org/protobuf/proto"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

const (
	maxFound        = 8
	maxFoundMessage = 1024
)

var foundType = regexp.MustCompile(`^[A-Za-z]{1,64}$`)

// NoteHealth implements lvmdv1.LVMDServer.
func (s *Service) NoteHealth(_ context.Context, r *lvmdv1.NoteHealthRequest) (*lvmdv1.NoteHealthResponse, error) {
	if n := len(r.GetFound()); n > maxFound {
		return nil, invalidField("found", "%d conditions are given; at most %d are allowed", n, maxFound)
	}
	for _, c := range r.GetFound() {
		if !foundType.MatchString(c.GetType()) {
			return nil, invalidField("found.type", "%.80q is not allowed; up to 64 letters are", c.GetType())
		}
		if n := len(c.GetMessage()); n > maxFoundMessage {
			return nil, invalidField("found.message", "%d bytes are given; at most %d are allowed", n, maxFoundMessage)
		}
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	v, err := s.model.lookup(r.GetId(), "")
	if err != nil {
		return nil, err
	}
	same := slices.EqualFunc(v.found, r.GetFound(), func(a, b *lvmdv1.Condition) bool { return proto.Equal(a, b) })
	if !same {
		// It is replaced, never written to: watchers may be sending what it was.
		v.found = r.GetFound()
		s.model.publish(v.group, v)
	}
	return &lvmdv1.NoteHealthResponse{}, nil
}
