package lvmd

import (
	"context"
	"regexp"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
)

const (
	maxFound        = 8
	maxFoundMessage = 1024
)

var foundType = regexp.MustCompile(`^[A-Za-z]{1,64}$`)

// NoteHealth implements lvmdv1.LVMDServer.
func (s *Service) NoteHealth(_ context.Context, r *lvmdv1.NoteHealthRequest) (*lvmdv1.NoteHealthResponse, error) {
	if n := len(r.GetFound()); n > maxFound {
		return nil, apierror.InvalidField("found", "%d conditions are given; at most %d are allowed", n, maxFound)
	}
	for _, c := range r.GetFound() {
		if !foundType.MatchString(c.GetType()) {
			return nil, apierror.InvalidField("found.type", "%.80q is not allowed; up to 64 letters are", c.GetType())
		}
		if n := len(c.GetMessage()); n > maxFoundMessage {
			return nil, apierror.InvalidField("found.message", "%d bytes are given; at most %d are allowed", n, maxFoundMessage)
		}
	}
	if err := s.inventory.SetFound(r.GetId(), r.GetFound()); err != nil {
		return nil, err
	}
	return &lvmdv1.NoteHealthResponse{}, nil
}
