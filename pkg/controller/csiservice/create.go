package csiservice

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/quantity"
	"github.com/carve-csi/carve/pkg/scheduler"
)

// CreateVolume makes a volume on the node that may hold one of that name
// already, on that of its source, or on the best of those that are allowed and
// have free space.
func (s *Service) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	desired, err := desiredOf(r)
	if err != nil {
		return nil, err
	}
	where, err := placeOf(r.GetAccessibilityRequirements())
	if err != nil {
		return nil, err
	}
	ask, policy, err := s.o.Request(desired)
	if err != nil {
		return nil, invalid("parameters", "%v", err)
	}
	if err := s.begin(desired.Name); err != nil {
		return nil, err
	}
	defer s.end(desired.Name)
	sourceNode, err := s.setSource(ctx, ask, r.GetVolumeContentSource())
	if err != nil {
		return nil, err
	}
	nodes, err := s.candidates(ask, sourceNode, where, policy)
	if err != nil {
		return nil, err
	}
	refused := errors.New("none was asked")
	for _, node := range nodes {
		vol, err := s.createOn(ctx, node, ask)
		if err == nil {
			if err := s.matchLimits(ctx, node, vol, ask.GetIoLimits()); err != nil {
				return nil, onNode(node, err)
			}
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
	return nil, fail(codes.ResourceExhausted, "no node that is connected and allowed has %s free in device class %q: %v",
		quantity.Bytes(desired.Bytes), ask.GetDeviceClass(), refused)
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

// createOn makes the volume on a node. While it is not known whether one was made
// there, the request is in flight on that node, and is sent to no other one.
func (s *Service) createOn(ctx context.Context, node string, ask *lvmdv1.CreateVolumeRequest) (*lvmdv1.Volume, error) {
	s.mu.Lock()
	_, inFlight := s.inFlight[ask.GetName()]
	s.inFlight[ask.GetName()] = node
	s.mu.Unlock()
	began := time.Now()
	vol, err := s.Fleet.CreateVolume(ctx, node, ask)
	var wrong error
	if err == nil {
		wrong = s.o.IDs.Accept(node, ask, vol)
	}
	s.noteAttempt(ctx, node, ask, began, cmp.Or(err, wrong))
	if err != nil && fleet.MayHaveHappened(err) {
		return nil, onNode(node, err)
	}
	if fleet.NotSent(err) && inFlight {
		// What an earlier call did there is open on. What a node holds that is gone belongs to no request any more.
		if gone, goneErr := s.NodeGone(ctx, node); goneErr != nil || !gone {
			return nil, onNode(node, errors.Join(err, goneErr))
		}
	}
	s.mu.Lock()
	delete(s.inFlight, ask.GetName())
	s.mu.Unlock()
	if wrong != nil {
		return nil, fail(codes.Internal, "%v", wrong)
	}
	return vol, onNode(node, err)
}

// noteAttempt counts an attempt to make an empty volume on a node for or against the node. Of
// those that fail for one volume, only those on the node where the first one failed count: a
// request that fails everywhere is no node's fault.
func (s *Service) noteAttempt(ctx context.Context, node string, ask *lvmdv1.CreateVolumeRequest, began time.Time, err error) {
	if ctx.Err() != nil || ask.GetSource() != nil {
		return // the caller left, or it may be the source's fault
	}
	if err == nil {
		s.failedOn.Remove(ask.GetName())
		if class, ok := s.DeviceClassOn(node, ask.GetDeviceClass()); ok {
			s.CountSuccess(s.o.Available, node, class)
		}
		return
	}
	if first, ok := s.failedOn.Get(ask.GetName()); ok && first != node {
		return
	}
	s.failedOn.Add(ask.GetName(), node)
	s.CountFailure(s.o.Available, node, ask.GetDeviceClass(), began, err)
}

// setSource completes the request by what the volume is to be made of, and
// returns the node where that is, or "".
func (s *Service) setSource(ctx context.Context, ask *lvmdv1.CreateVolumeRequest, source *csi.VolumeContentSource) (string, error) {
	switch {
	case source == nil:
		return "", nil
	case source.GetSnapshot() != nil:
		node, id, ok := spec.ParseSnapshotHandle(source.GetSnapshot().GetSnapshotId())
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
	holders := s.Fleet.Holders(ask.GetName())
	s.mu.Lock()
	if node, ok := s.inFlight[ask.GetName()]; ok {
		holders = []string{node} // whatever nodes report: any can report any name
	}
	s.mu.Unlock()
	allowed := slices.DeleteFunc(slices.Clone(holders), func(node string) bool { return !where.allows(node) })
	switch {
	case len(allowed) > 1:
		return nil, ambiguous(allowed)
	case len(allowed) == 1:
		return allowed, nil
	case len(holders) > 0:
		return nil, fail(codes.AlreadyExists, "volume %s is, or may be, on node %s, which is not among those that are asked for", ask.GetName(), holders[0])
	case sourceNode != "" && !where.allows(sourceNode):
		return nil, fail(codes.ResourceExhausted, "the source is on node %s, which is not among those that are asked for", sourceNode)
	case sourceNode != "":
		return []string{sourceNode}, nil
	}
	all := s.o.Ledger.Candidates(ask.GetDeviceClass(), 0)
	out := slices.Clone(where.preferred)
	for _, c := range policy.Rank(ask.GetRequiredBytes(), all) {
		view, ok := s.Fleet.View(c.Node)
		if ok && view.Connected && where.allows(c.Node) && !slices.Contains(out, c.Node) {
			out = append(out, c.Node)
		}
	}
	// Of several nodes, those that are held back come last, also where they are preferred:
	// the upstream provisioner prefers any.
	held := map[string]bool{}
	for _, c := range all {
		held[c.Node] = c.Held
	}
	slices.SortStableFunc(out, func(a, b string) int {
		switch {
		case held[a] == held[b]:
			return 0
		case held[b]:
			return -1
		}
		return 1
	})
	return out, nil
}
