package fakelvmd

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
)

// Snapshots returns the snapshots there are, by name.
func (s *Server) Snapshots() map[string]*lvmdv1.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]*lvmdv1.Snapshot{}
	for _, snapshot := range s.snapshots {
		out[snapshot.GetName()] = snapshot
	}
	return out
}

// SetCopied makes a volume look as one of which so much has been copied, or,
// with -1, as one that is complete.
func (s *Server) SetCopied(name string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := proto.CloneOf(s.byName(name))
	v.State, v.CopiedBytes = lvmdv1.VolumeState_VOLUME_STATE_CREATING, bytes
	if bytes < 0 {
		v.State, v.CopiedBytes = lvmdv1.VolumeState_VOLUME_STATE_READY, 0
	}
	s.volumes[v.GetId()] = v
	s.publish(&lvmdv1.WatchResponse{Volumes: []*lvmdv1.Volume{v}})
}

// source is what is to be known of what a volume is made of.
type source struct {
	class, fsType string
	mode          lvmdv1.VolumeMode
	bytes         int64
}

// sourceOf finds a request's source. Called with the lock held.
func (s *Server) sourceOf(r *lvmdv1.VolumeSource) (source, error) {
	if id := r.GetSnapshotId(); id != "" {
		snapshot := s.snapshots[id]
		if snapshot == nil {
			return source{}, Error(codes.NotFound, names.ReasonSnapshotNotFound, fmt.Sprintf("no snapshot %q on node %s", id, s.node))
		}
		return source{snapshot.GetDeviceClass(), snapshot.GetFsType(), snapshot.GetMode(), snapshot.GetSizeBytes()}, nil
	}
	v := s.volumes[r.GetVolumeId()]
	if v == nil {
		return source{}, Error(codes.NotFound, names.ReasonVolumeNotFound, fmt.Sprintf("no volume %q on node %s", r.GetVolumeId(), s.node))
	}
	return source{v.GetDeviceClass(), v.GetFsType(), v.GetMode(), v.GetSizeBytes()}, nil
}

// fits tells whether a volume of that class, mode and file system can be made
// of the source, as lvmd judges it.
func (f source) fits(r *lvmdv1.VolumeSource, class string, mode lvmdv1.VolumeMode, fsType string) error {
	switch {
	case f.mode != mode:
		return Error(codes.InvalidArgument, names.ReasonInvalidField, "the source is of another mode")
	case f.fsType != fsType:
		return Error(codes.InvalidArgument, names.ReasonInvalidField, "the source has another file system")
	case r.GetSnapshotId() != "" && f.class != class:
		return Error(codes.FailedPrecondition, names.ReasonNotThin, "the snapshot lies in another pool")
	}
	return nil
}

// CreateSnapshot implements the service.
func (s *Server) CreateSnapshot(_ context.Context, r *lvmdv1.CreateSnapshotRequest) (*lvmdv1.CreateSnapshotResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, old := range s.snapshots {
		if old.GetName() != r.GetName() {
			continue
		}
		if old.GetSourceVolumeId() != r.GetSourceVolumeId() {
			return nil, Error(codes.AlreadyExists, names.ReasonRequestDiffers, "the snapshot exists with another source")
		}
		return &lvmdv1.CreateSnapshotResponse{Snapshot: old}, nil
	}
	v := s.volumes[r.GetSourceVolumeId()]
	if v == nil {
		return nil, Error(codes.NotFound, names.ReasonVolumeNotFound, "no such volume")
	}
	class := s.classes[v.GetDeviceClass()]
	switch {
	case class == nil || !class.Thin:
		return nil, Error(codes.FailedPrecondition, names.ReasonNotThin, "only thin volumes have snapshots")
	case v.GetSizeBytes() > s.free(class):
		return nil, Error(codes.ResourceExhausted, names.ReasonNoSpace, "no room for a snapshot on node "+s.node)
	}
	snapshot := &lvmdv1.Snapshot{
		Id: "cs" + newID(), Name: r.GetName(), SourceVolumeId: v.GetId(), DeviceClass: v.GetDeviceClass(), SizeBytes: v.GetSizeBytes(),
		Mode: v.GetMode(), FsType: v.GetFsType(), VgName: v.GetVgName(), VgUuid: v.GetVgUuid(), Owner: proto.CloneOf(r.GetOwner()),
		CreatedAt: timestamppb.New(time.Now()), Ready: true,
	}
	s.snapshots[snapshot.GetId()] = snapshot
	s.publish(&lvmdv1.WatchResponse{Classes: s.reports(class.Name)})
	return &lvmdv1.CreateSnapshotResponse{Snapshot: snapshot}, nil
}

// DeleteSnapshot implements the service.
func (s *Server) DeleteSnapshot(_ context.Context, r *lvmdv1.DeleteSnapshotRequest) (*lvmdv1.DeleteSnapshotResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, snapshot := range s.snapshots {
		if id == r.GetId() || r.GetName() != "" && snapshot.GetName() == r.GetName() {
			delete(s.snapshots, id)
			s.publish(&lvmdv1.WatchResponse{Classes: s.reports(snapshot.GetDeviceClass())})
		}
	}
	return &lvmdv1.DeleteSnapshotResponse{}, nil
}

// GetSnapshot implements the service.
func (s *Server) GetSnapshot(_ context.Context, r *lvmdv1.GetSnapshotRequest) (*lvmdv1.GetSnapshotResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, snapshot := range s.snapshots {
		if id == r.GetId() || r.GetName() != "" && snapshot.GetName() == r.GetName() {
			return &lvmdv1.GetSnapshotResponse{Snapshot: snapshot}, nil
		}
	}
	return nil, Error(codes.NotFound, names.ReasonSnapshotNotFound, "no such snapshot")
}

// ListSnapshots implements the service.
func (s *Server) ListSnapshots(_ context.Context, r *lvmdv1.ListSnapshotsRequest) (*lvmdv1.ListSnapshotsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.SortedFunc(maps.Values(s.snapshots), func(a, b *lvmdv1.Snapshot) int { return strings.Compare(a.GetId(), b.GetId()) })
	all = slices.DeleteFunc(all, func(snapshot *lvmdv1.Snapshot) bool {
		return snapshot.GetId() <= r.GetPageToken() || r.GetSourceVolumeId() != "" && snapshot.GetSourceVolumeId() != r.GetSourceVolumeId()
	})
	out := &lvmdv1.ListSnapshotsResponse{Snapshots: all}
	if n := int(r.GetPageSize()); n > 0 && n < len(all) {
		out.Snapshots, out.NextPageToken = all[:n], all[n-1].GetId()
	}
	return out, nil
}
