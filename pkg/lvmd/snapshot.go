package lvmd

import (
	"context"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// CreateSnapshot implements lvmdv1.LVMDServer.
func (s *Service) CreateSnapshot(ctx context.Context, r *lvmdv1.CreateSnapshotRequest) (*lvmdv1.CreateSnapshotResponse, error) {
	if !spec.VolumeID.MatchString(r.GetSourceVolumeId()) {
		return nil, apierror.InvalidField("source_volume_id", "%q is not a volume's id", r.GetSourceVolumeId())
	}
	if !spec.VolumeName.MatchString(r.GetName()) {
		return nil, apierror.InvalidField("name", "%q is not 1 to 128 of [A-Za-z0-9._-]", r.GetName())
	}
	ident := spec.Identity{Name: r.GetName(), Snapshot: true, Source: r.GetSourceVolumeId(), Owner: spec.OwnerFrom(r.GetOwner())}
	if err := ident.Owner.Check(); err != nil {
		return nil, err
	}
	a, err := s.creator.admitSnapshot(ident)
	if err != nil {
		return nil, err
	}
	if a.Creation != nil {
		if _, err := wait(ctx, a.Creation); err != nil {
			return nil, apierror.From("creating the snapshot", err)
		}
	}
	return &lvmdv1.CreateSnapshotResponse{Snapshot: a.Volume.ReportSnapshot()}, nil
}

// DeleteSnapshot implements lvmdv1.LVMDServer. It runs no command: it makes the snapshot a
// tombstone, which package reclaim frees.
func (s *Service) DeleteSnapshot(_ context.Context, r *lvmdv1.DeleteSnapshotRequest) (*lvmdv1.DeleteSnapshotResponse, error) {
	v, err := s.claimForDeletion(inventory.ToDelete{ID: r.GetId(), Name: r.GetName(), Snapshot: true})
	switch {
	case apierror.IsNotFound(err):
		return &lvmdv1.DeleteSnapshotResponse{}, nil
	case err != nil:
		return nil, err
	}
	if err := s.putTombstone(v); err != nil {
		v.Release()
		return nil, apierror.From("deleting snapshot "+v.ID(), err)
	}
	s.crash("snapshot: tombstone written")
	v.MarkDeleted(nil)
	s.groups.Of(v).Reclaim()
	return &lvmdv1.DeleteSnapshotResponse{}, nil
}
