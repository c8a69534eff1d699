package lvmdfake

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/quantity"
)

// Snapshots returns all snapshots, by name.
func (s *Server) Snapshots() map[string]*lvmdv1.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]*lvmdv1.Snapshot{}
	for _, snapshot := range s.disks.snapshots {
		out[snapshot.GetName()] = snapshot
	}
	return out
}

// CreateSnapshot implements the service.
func (s *Server) CreateSnapshot(ctx context.Context, r *lvmdv1.CreateSnapshotRequest) (*lvmdv1.CreateSnapshotResponse, error) {
	if err := before(ctx, s.Hooks().BeforeSnapshot, r); err != nil {
		return nil, err
	}
	unlock, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if old := s.disks.snapshot("", r.GetName()); old != nil {
		if old.GetSourceVolumeId() != r.GetSourceVolumeId() {
			return nil, apierror.RequestDiffers(r.GetName(), "its source differs")
		}
		return &lvmdv1.CreateSnapshotResponse{Snapshot: old}, nil
	}
	v := s.disks.volumes[r.GetSourceVolumeId()]
	if v == nil {
		return nil, apierror.VolumeNotFound(r.GetSourceVolumeId())
	}
	class := s.disks.classes[v.GetDeviceClass()]
	switch {
	case class == nil || !class.Thin:
		return nil, apierror.NotThin("only thin volumes have snapshots")
	case v.GetSizeBytes() > s.disks.free(class):
		return nil, apierror.NoSpace("no space for a snapshot of %s", quantity.Bytes(v.GetSizeBytes()))
	}
	snapshot := &lvmdv1.Snapshot{
		Id: "cs" + newID(), Name: r.GetName(), SourceVolumeId: v.GetId(), DeviceClass: v.GetDeviceClass(), SizeBytes: v.GetSizeBytes(),
		Mode: v.GetMode(), FsType: v.GetFsType(), VgName: v.GetVgName(), VgUuid: v.GetVgUuid(), Owner: proto.CloneOf(r.GetOwner()),
		CreatedAt: timestamppb.New(time.Now()), Ready: true,
	}
	s.disks.snapshots[snapshot.GetId()] = snapshot
	s.changes.publish(&lvmdv1.WatchResponse{Classes: s.disks.reports(class.Name)})
	return &lvmdv1.CreateSnapshotResponse{Snapshot: snapshot}, nil
}

// DeleteSnapshot implements the service.
func (s *Server) DeleteSnapshot(ctx context.Context, r *lvmdv1.DeleteSnapshotRequest) (*lvmdv1.DeleteSnapshotResponse, error) {
	if err := before(ctx, s.Hooks().BeforeDeleteSnapshot, r); err != nil {
		return nil, err
	}
	unlock, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if snapshot := s.disks.snapshot(r.GetId(), r.GetName()); snapshot != nil {
		delete(s.disks.snapshots, snapshot.GetId())
		s.changes.publish(&lvmdv1.WatchResponse{Classes: s.disks.reports(snapshot.GetDeviceClass())})
	}
	return &lvmdv1.DeleteSnapshotResponse{}, nil
}

// GetSnapshot implements the service.
func (s *Server) GetSnapshot(_ context.Context, r *lvmdv1.GetSnapshotRequest) (*lvmdv1.GetSnapshotResponse, error) {
	unlock, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if snapshot := s.disks.snapshot(r.GetId(), r.GetName()); snapshot != nil {
		return &lvmdv1.GetSnapshotResponse{Snapshot: snapshot}, nil
	}
	return nil, apierror.SnapshotNotFound(cmp.Or(r.GetId(), r.GetName()))
}

// ListSnapshots implements the service.
func (s *Server) ListSnapshots(_ context.Context, r *lvmdv1.ListSnapshotsRequest) (*lvmdv1.ListSnapshotsResponse, error) {
	unlock, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer unlock()
	all := slices.SortedFunc(maps.Values(s.disks.snapshots), func(a, b *lvmdv1.Snapshot) int { return strings.Compare(a.GetId(), b.GetId()) })
	all = slices.DeleteFunc(all, func(snapshot *lvmdv1.Snapshot) bool {
		return snapshot.GetId() <= r.GetPageToken() || r.GetSourceVolumeId() != "" && snapshot.GetSourceVolumeId() != r.GetSourceVolumeId()
	})
	out := &lvmdv1.ListSnapshotsResponse{Snapshots: all}
	if n := int(r.GetPageSize()); n > 0 && n < len(all) {
		out.Snapshots, out.NextPageToken = all[:n], all[n-1].GetId()
	}
	return out, nil
}
