package csiservice

import (
	"context"
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/iolimit"
)

// ControllerModifyVolume replaces the I/O limits of a volume.
func (s *Service) ControllerModifyVolume(ctx context.Context, r *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	limits, err := mutable(r.GetMutableParameters())
	if err != nil {
		return nil, err
	}
	node, vol, err := s.locate(ctx, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if _, err := s.Fleet.ModifyVolume(ctx, node, &lvmdv1.ModifyVolumeRequest{Id: vol.GetId(), IoLimits: limits.Proto()}); err != nil {
		return nil, onNode(node, err)
	}
	return &csi.ControllerModifyVolumeResponse{}, nil
}

// matchLimits gives a volume the limits that are asked for, if it was made before with others.
func (s *Service) matchLimits(ctx context.Context, node string, vol *lvmdv1.Volume, want *lvmdv1.IOLimits) error {
	if iolimit.FromProto(vol.GetIoLimits()) == iolimit.FromProto(want) {
		return nil
	}
	_, err := s.Fleet.ModifyVolume(ctx, node, &lvmdv1.ModifyVolumeRequest{Id: vol.GetId(), IoLimits: want})
	return err
}

// mutable reads the parameters that may change.
func mutable(parameters map[string]string) (iolimit.Limits, error) {
	limits, err := spec.ParseAttributes("mutable_parameters", parameters)
	var refused *spec.InvalidError
	if errors.As(err, &refused) {
		return limits, fail(codes.InvalidArgument, "%v", err)
	}
	return limits, err
}
