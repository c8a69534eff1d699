package csiservice

import (
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/scheduler"
)

// CreateVolume makes a volume on the node that may hold one of that name
// already, on that of its source, or on the best of those that are allowed and
// have room.
func (s *Service) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	wish, err := wishOf(r)
	if err != nil {
		return nil, err
	}
	where, err := placeOf(r.GetAccessibilityRequirements())
	if err != nil {
		return nil, err
	}
	ask, policy, err := s.o.Request(wish)
	if err != nil {
		return nil, invalid("parameters", "%v", err)
	}
	if err := s.begin(wish.Name); err != nil {
		return nil, err
	}
	defer s.end(wish.Name)
	sourceNode, err := s.setSource(ctx, ask, r.GetVolumeContentSource())
	if err != nil {
		return nil, err
	}
	nodes, err := s.candidates(ask, sourceNode, where, policy)
	if err != nil {
		return nil, err
	}
	var refused error
	for _, node := range nodes {
		vol, err := s.createOn(ctx, node, ask)
		if err == nil {
			s.awaitReport(ctx, node, vol.GetId(), true)
			return &csi.CreateVolumeResponse{Volume: volumeOf(node, vol)}, nil
		}
		reason := fleet.Reason(err)
		if !fleet.IsNotConnected(err) && !slices.Contains([]string{names.ReasonNoSpace, names.ReasonClassNotFound, names.ReasonDeviceMissing}, reason) {
			return nil, err
		}
		refused = err
	}
	if len(nodes) == 1 {
		return nil, refused
	}
	return nil, fail(codes.ResourceExhausted, "no node that is connected and allowed has %d bytes free in device class %q: %v",
		wish.Bytes, ask.GetDeviceClass(), orNothing(refused))
}

func orNothing(err error) error {
	if err == nil {
		return fmt.Errorf("none was asked")
	}
	return err
}

// begin keeps two calls from making one volume on two nodes.
func (s *Service) begin(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, is := s.busy[name]; is {
		return fail(codes.Aborted, "another call is creating volume %s", name)
	}
	s.busy[name] = struct{}{}
	return nil
}

func (s *Service) end(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, name)
}

// createOn makes the volume on a node. While it is not known whether one was
// made there, the node is in doubt.
func (s *Service) createOn(ctx context.Context, node string, ask *lvmdv1.CreateVolumeRequest) (*lvmdv1.Volume, error) {
	s.mu.Lock()
	_, doubted := s.doubts[ask.GetName()]
	s.doubts[ask.GetName()] = node
	s.mu.Unlock()
	vol, err := s.o.Fleet.CreateVolume(ctx, node, ask)
	if err != nil && (fleet.MayHaveHappened(err) || fleet.IsNotConnected(err) && doubted) {
		return nil, onNode(node, err)
	}
	s.mu.Lock()
	delete(s.doubts, ask.GetName())
	s.mu.Unlock()
	return vol, onNode(node, err)
}

// setSource completes the request by what the volume is to be made of, and
// returns the node where that is, or "".
func (s *Service) setSource(ctx context.Context, ask *lvmdv1.CreateVolumeRequest, source *csi.VolumeContentSource) (string, error) {
	switch {
	case source == nil:
		return "", nil
	case source.GetSnapshot() != nil:
		node, id, ok := ParseSnapshotHandle(source.GetSnapshot().GetSnapshotId())
		if !ok {
			return "", fail(codes.NotFound, "volume_content_source: no snapshot %q", source.GetSnapshot().GetSnapshotId())
		}
		ask.Source = &lvmdv1.VolumeSource{SnapshotId: id}
		return node, nil
	case source.GetVolume() != nil:
		node, vol, err := s.locate(ctx, source.GetVolume().GetVolumeId())
		if err != nil {
			return "", err
		}
		ask.Source = &lvmdv1.VolumeSource{VolumeId: vol.GetId()}
		return node, nil
	}
	return "", invalid("volume_content_source", "a snapshot or a volume is required")
}

// candidates are the nodes to try, in order.
func (s *Service) candidates(ask *lvmdv1.CreateVolumeRequest, sourceNode string, where place, policy scheduler.Policy) ([]string, error) {
	holders := s.o.Fleet.Holders(ask.GetName())
	s.mu.Lock()
	if node, ok := s.doubts[ask.GetName()]; ok && len(holders) == 0 {
		holders = []string{node}
	}
	s.mu.Unlock()
	switch {
	case len(holders) > 0 && !where.allows(holders[0]):
		return nil, fail(codes.AlreadyExists, "volume %s is, or may be, on node %s, which is not among those that are asked for", ask.GetName(), holders[0])
	case len(holders) > 0:
		return holders[:1], nil
	case sourceNode != "" && !where.allows(sourceNode):
		return nil, fail(codes.ResourceExhausted, "the source is on node %s, which is not among those that are asked for", sourceNode)
	case sourceNode != "":
		return []string{sourceNode}, nil
	}
	out := slices.Clone(where.preferred)
	for _, c := range policy.Rank(ask.GetRequiredBytes(), s.o.Ledger.Candidates(ask.GetDeviceClass())) {
		view, ok := s.o.Fleet.View(c.Node)
		if ok && view.Connected && where.allows(c.Node) && !slices.Contains(out, c.Node) {
			out = append(out, c.Node)
		}
	}
	return out, nil
}
