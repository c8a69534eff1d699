package fakelvmd

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// Empty has the encrypted volume of a name lose its key and all that it held.
func (s *Server) Empty(name string, when time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := proto.CloneOf(s.byName(name))
	v.EmptiedAt = timestamppb.New(when)
	s.volumes[v.GetId()] = v
	s.publish(&lvmdv1.WatchResponse{Volumes: []*lvmdv1.Volume{v}})
}
