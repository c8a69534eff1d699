package lvmd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"regexp"

	"google.golang.org/grpc"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/lvmd/volumegroup"
)

// GetVolume implements lvmdv1.LVMDServer.
func (s *Service) GetVolume(_ context.Context, r *lvmdv1.GetVolumeRequest) (*lvmdv1.GetVolumeResponse, error) {
	v, report, err := s.inventory.ReadVolume(r.GetId(), r.GetName())
	if err != nil {
		return nil, err
	}
	// Disks' UUIDs must not be published, so the name is a digest of them.
	disks := sha256.Sum256([]byte(volumegroup.Disks(s.lvm, v)))
	report.Disks = hex.EncodeToString(disks[:16])
	return &lvmdv1.GetVolumeResponse{Volume: report}, nil
}

// GetSnapshot implements lvmdv1.LVMDServer.
func (s *Service) GetSnapshot(_ context.Context, r *lvmdv1.GetSnapshotRequest) (*lvmdv1.GetSnapshotResponse, error) {
	v, err := s.inventory.ReadSnapshot(r.GetId(), r.GetName())
	if err != nil {
		return nil, err
	}
	return &lvmdv1.GetSnapshotResponse{Snapshot: v}, nil
}

// ListVolumes implements lvmdv1.LVMDServer. A page token is the last id of the previous page,
// so volumes that come or go between pages never repeat or hide others.
func (s *Service) ListVolumes(_ context.Context, r *lvmdv1.ListVolumesRequest) (*lvmdv1.ListVolumesResponse, error) {
	limit, err := pageSize(r, spec.VolumeID)
	if err != nil {
		return nil, err
	}
	volumes, more := s.inventory.Volumes(r.GetPageToken(), limit)
	resp := &lvmdv1.ListVolumesResponse{Volumes: volumes}
	if more {
		resp.NextPageToken = volumes[limit-1].GetId()
	}
	return resp, nil
}

// ListSnapshots implements lvmdv1.LVMDServer. It pages like ListVolumes.
func (s *Service) ListSnapshots(_ context.Context, r *lvmdv1.ListSnapshotsRequest) (*lvmdv1.ListSnapshotsResponse, error) {
	limit, err := pageSize(r, spec.SnapshotID)
	if err != nil {
		return nil, err
	}
	snapshots, more := s.inventory.Snapshots(r.GetSourceVolumeId(), r.GetPageToken(), limit)
	resp := &lvmdv1.ListSnapshotsResponse{Snapshots: snapshots}
	if more {
		resp.NextPageToken = snapshots[limit-1].GetId()
	}
	return resp, nil
}

// pageSize validates the page size and token, where the token must match id. A size of 0 means
// no limit.
func pageSize(r interface {
	GetPageSize() int32
	GetPageToken() string
}, id *regexp.Regexp,
) (int, error) {
	if r.GetPageSize() < 0 {
		return 0, apierror.InvalidField("page_size", "%d is negative; 0 means no limit", r.GetPageSize())
	}
	if t := r.GetPageToken(); t != "" && !id.MatchString(t) {
		return 0, apierror.InvalidField("page_token", "%q is not one that was given out", t)
	}
	if r.GetPageSize() == 0 {
		return math.MaxInt, nil
	}
	return int(r.GetPageSize()), nil
}

// ListClasses implements lvmdv1.LVMDServer.
func (s *Service) ListClasses(context.Context, *lvmdv1.ListClassesRequest) (*lvmdv1.ListClassesResponse, error) {
	return &lvmdv1.ListClassesResponse{Classes: s.inventory.Classes()}, nil
}

// Watch implements lvmdv1.LVMDServer. A stream ends with the caller's context or when lvmd
// stops.
func (s *Service) Watch(r *lvmdv1.WatchRequest, stream grpc.ServerStreamingServer[lvmdv1.WatchResponse]) error {
	w := s.inventory.Watch(r.GetEpoch(), r.GetGeneration())
	defer w.End()
	for {
		select {
		case <-w.Wake():
			if err := stream.Send(w.Next()); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		case <-s.stopping:
			return apierror.ErrStopping
		}
	}
}
