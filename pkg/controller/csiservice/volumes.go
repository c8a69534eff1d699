package csiservice

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/wrapperspb"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/luks"
)

// DeleteVolume removes a volume. One that no node has is no error; one that an
// absent node may have is.
func (s *Service) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	node, _, err := s.locate(ctx, r.GetVolumeId())
	switch {
	case err != nil && isNotFound(err):
		return &csi.DeleteVolumeResponse{}, nil
	case err != nil:
		return nil, err
	}
	if err := s.Fleet.DeleteVolumeByID(ctx, node, r.GetVolumeId()); err != nil {
		return nil, onNode(node, err)
	}
	s.awaitReport(ctx, node, r.GetVolumeId(), false)
	return &csi.DeleteVolumeResponse{}, nil
}

// ValidateVolumeCapabilities reports whether a volume can be used as asked.
func (s *Service) ValidateVolumeCapabilities(ctx context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if r.GetVolumeId() != "" && len(r.GetVolumeCapabilities()) == 0 {
		return nil, invalid("volume_capabilities", "a value is required")
	}
	_, vol, err := s.locate(ctx, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	for _, c := range r.GetVolumeCapabilities() {
		if err := fits(c, vol); err != nil {
			return &csi.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil //nolint:nilerr // it is the answer
		}
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters(),
	}}, nil
}

// volumeToken is a volume's id: a page begins after it.
var volumeToken = regexp.MustCompile(`^cv[a-z2-7]{26}$`)

// ListVolumes pages through the volumes of all nodes in the order of their ids,
// so that what comes and goes meanwhile moves nothing else. Absent nodes' are
// as they last reported them.
func (s *Service) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	after, most := r.GetStartingToken(), int(r.GetMaxEntries())
	switch {
	case most < 0:
		return nil, invalid("max_entries", "%d is negative", most)
	case after != "" && !volumeToken.MatchString(after):
		return nil, fail(codes.Aborted, "starting_token: %q was never given", after)
	}
	type held struct {
		node string
		vol  *lvmdv1.Volume
	}
	var all []held
	for _, view := range s.Fleet.Views() {
		for id, vol := range view.Volumes {
			if node, known := s.NodeOfVolume(id); known && node != view.Node {
				continue // the node reports another node's volume
			}
			if id > after && vol.GetState() == lvmdv1.VolumeState_VOLUME_STATE_READY {
				all = append(all, held{view.Node, vol})
			}
		}
	}
	slices.SortFunc(all, func(a, b held) int { return strings.Compare(a.vol.GetId(), b.vol.GetId()) })
	answer := &csi.ListVolumesResponse{}
	if most > 0 && len(all) > most {
		all = all[:most]
		answer.NextToken = all[most-1].vol.GetId()
	}
	for _, h := range all {
		answer.Entries = append(answer.Entries, &csi.ListVolumesResponse_Entry{Volume: volumeOf(h.node, h.vol)})
	}
	return answer, nil
}

// ControllerGetVolume describes a volume.
func (s *Service) ControllerGetVolume(ctx context.Context, r *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	node, vol, err := s.locate(ctx, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{Volume: volumeOf(node, vol), Status: &csi.ControllerGetVolumeResponse_VolumeStatus{}}, nil
}

// GetCapacity reports how much free space there is for volumes of a kind: on a node, or
// in sum. What cannot be made at all has none.
func (s *Service) GetCapacity(_ context.Context, r *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	desired := Desired{Name: "capacity", Bytes: 1, Parameters: r.GetParameters()}
	for _, c := range r.GetVolumeCapabilities() {
		if checkCapability(c) != nil {
			return &csi.GetCapacityResponse{MaximumVolumeSize: wrapperspb.Int64(0)}, nil //nolint:nilerr // there is no space for what cannot be
		}
		desired.Block, desired.FSType = c.GetBlock() != nil, c.GetMount().GetFsType()
	}
	var nodes []string
	if r.GetAccessibleTopology() != nil {
		var err error
		if nodes, err = nodesOf("accessible_topology", []*csi.Topology{r.GetAccessibleTopology()}); err != nil {
			return nil, err
		}
	}
	ask, _, err := s.o.Request(desired)
	if err != nil {
		return nil, invalid("parameters", "%v", err)
	}
	var sum, largest, header int64
	if ask.GetEncryption() == names.EncryptionLUKS {
		header = luks.HeaderBytes
	}
	for _, c := range s.o.Ledger.Candidates(ask.GetDeviceClass(), 0) {
		if len(nodes) > 0 && !slices.Contains(nodes, c.Node) {
			continue
		}
		free := c.FreeSpace.Besides(header)
		if sum += free.Available; sum < 0 {
			sum = 1<<63 - 1
		}
		largest = max(largest, free.MaximumVolume)
	}
	return &csi.GetCapacityResponse{AvailableCapacity: sum, MaximumVolumeSize: wrapperspb.Int64(largest)}, nil
}

// ControllerExpandVolume grows the logical volume; the file system in it is
// the node plugin's.
func (s *Service) ControllerExpandVolume(ctx context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	least, most := r.GetCapacityRange().GetRequiredBytes(), r.GetCapacityRange().GetLimitBytes()
	if r.GetVolumeId() != "" && r.GetCapacityRange() == nil {
		return nil, invalid("capacity_range", "a value is required")
	}
	if err := checkRange(least, most); err != nil {
		return nil, err
	}
	node, vol, err := s.locate(ctx, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if c := r.GetVolumeCapability(); c != nil {
		if err := fits(c, vol); err != nil {
			return nil, err
		}
	}
	// With only a limit given, what the volume has is enough, or too much.
	grown, err := s.Fleet.ExpandVolume(ctx, node, &lvmdv1.ExpandVolumeRequest{Id: vol.GetId(), RequiredBytes: max(least, 1), LimitBytes: most})
	if err != nil {
		return nil, onNode(node, err)
	}
	return &csi.ControllerExpandVolumeResponse{
		CapacityBytes: grown.GetSizeBytes(), NodeExpansionRequired: grown.GetMode() == lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM,
	}, nil
}
