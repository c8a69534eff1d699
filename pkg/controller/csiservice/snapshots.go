package csiservice

import (
	"context"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/fleet"
)

// snapshotsAtOnce is how many snapshots a node is asked for in one call: the fleet bounds
// the bytes of an answer.
const snapshotsAtOnce = 250

func snapshotOf(node string, s *lvmdv1.Snapshot) *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId: spec.SnapshotHandle(node, s.GetId()), SourceVolumeId: s.GetSourceVolumeId(), SizeBytes: s.GetSizeBytes(),
		CreationTime: s.GetCreatedAt(), ReadyToUse: s.GetReady(),
	}
}

// CreateSnapshot keeps what a volume of a thin class holds now.
func (s *Service) CreateSnapshot(ctx context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	name, source := r.GetName(), r.GetSourceVolumeId()
	switch {
	case name == "":
		return nil, invalid("name", "a value is required")
	case source == "":
		return nil, invalid("source_volume_id", "a value is required")
	case len(r.GetParameters()) > 0:
		return nil, invalid("parameters", "none are allowed for snapshots")
	}
	other, same, err := askAll(ctx, s, func(ctx context.Context, node string) (*lvmdv1.Snapshot, error) {
		return s.Fleet.GetSnapshot(ctx, node, &lvmdv1.GetSnapshotRequest{Name: name})
	})
	switch {
	case err != nil:
		return nil, err
	case same != nil && same.GetSourceVolumeId() != source:
		return nil, fail(codes.AlreadyExists, "snapshot %s exists on node %s, of volume %s", name, other, same.GetSourceVolumeId())
	}
	made, err := s.Snapshot(ctx, name, source, "", "")
	if err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: made}, nil
}

// Snapshot is CreateSnapshot for those whose names are unique in the cluster.
// The owner, a name in a namespace, is noted on the snapshot. Errors are for
// Status.
func (s *Service) Snapshot(ctx context.Context, name, source, ownerNamespace, ownerName string) (*csi.Snapshot, error) {
	node, _, err := s.locate(ctx, source)
	if err != nil {
		return nil, err
	}
	made, err := s.Fleet.CreateSnapshot(ctx, node, &lvmdv1.CreateSnapshotRequest{Name: name, SourceVolumeId: source,
		Owner: &lvmdv1.Owner{ClusterId: s.ID, ClaimNamespace: ownerNamespace, ClaimName: ownerName}})
	if err != nil {
		return nil, onNode(node, err)
	}
	return snapshotOf(node, made), nil
}

// DeleteSnapshot removes a snapshot. One that is not there is no error, nor is
// one of a node that is lost (Cluster.NodeLost): should the node come back, nothing finds it again.
func (s *Service) DeleteSnapshot(ctx context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if r.GetSnapshotId() == "" {
		return nil, invalid("snapshot_id", "a value is required")
	}
	node, id, ok := spec.ParseSnapshotHandle(r.GetSnapshotId())
	if !ok {
		return &csi.DeleteSnapshotResponse{}, nil
	}
	err := s.Fleet.DeleteSnapshot(ctx, node, &lvmdv1.DeleteSnapshotRequest{Id: id})
	if fleet.IsNotConnected(err) {
		lost, lostErr := s.NodeLost(ctx, node)
		if lostErr != nil {
			return nil, lostErr
		}
		if lost {
			err = nil
		}
	}
	if err != nil {
		return nil, onNode(node, err)
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

// GetSnapshot describes a snapshot.
func (s *Service) GetSnapshot(ctx context.Context, r *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	if r.GetSnapshotId() == "" {
		return nil, invalid("snapshot_id", "a value is required")
	}
	found, err := s.snapshot(ctx, r.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	return &csi.GetSnapshotResponse{Snapshot: found}, nil
}

func (s *Service) snapshot(ctx context.Context, handle string) (*csi.Snapshot, error) {
	node, id, ok := spec.ParseSnapshotHandle(handle)
	if !ok {
		return nil, fail(codes.NotFound, "no snapshot %q", handle)
	}
	found, err := s.Fleet.GetSnapshot(ctx, node, &lvmdv1.GetSnapshotRequest{Id: id})
	if err != nil {
		return nil, onNode(node, err)
	}
	return snapshotOf(node, found), nil
}

// ListSnapshots pages through the snapshots of all nodes, one node after the
// other, or finds one by its id, or those of one volume. While a node is absent
// it is refused: a snapshot that is not listed is taken for gone.
func (s *Service) ListSnapshots(ctx context.Context, r *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	if handle := r.GetSnapshotId(); handle != "" {
		found, err := s.snapshot(ctx, handle)
		switch {
		case err != nil && isNotFound(err):
			return &csi.ListSnapshotsResponse{}, nil
		case err != nil:
			return nil, err
		case r.GetSourceVolumeId() != "" && r.GetSourceVolumeId() != found.GetSourceVolumeId():
			return &csi.ListSnapshotsResponse{}, nil
		}
		return &csi.ListSnapshotsResponse{Entries: []*csi.ListSnapshotsResponse_Entry{{Snapshot: found}}}, nil
	}
	most := int(r.GetMaxEntries())
	if most < 0 {
		return nil, invalid("max_entries", "%d is negative", most)
	}
	node, token, ok := strings.Cut(r.GetStartingToken(), "/")
	if r.GetStartingToken() != "" && !ok {
		return nil, fail(codes.Aborted, "starting_token: %q was never given", r.GetStartingToken())
	}
	if absent := s.AbsentNodes(); len(absent) > 0 {
		return nil, fail(codes.Unavailable, "these nodes cannot be asked for their snapshots: %s", strings.Join(absent, ", "))
	}
	nodes := s.connected()
	first, _ := slices.BinarySearch(nodes, node)
	answer := &csi.ListSnapshotsResponse{}
	for i := first; i < len(nodes); {
		if nodes[i] != node {
			token = "" // it is of another node
		}
		ask := &lvmdv1.ListSnapshotsRequest{SourceVolumeId: r.GetSourceVolumeId(), PageToken: token, PageSize: snapshotsAtOnce}
		if most > 0 {
			ask.PageSize = int32(min(snapshotsAtOnce, most-len(answer.GetEntries()))) //nolint:gosec // at most snapshotsAtOnce
		}
		page, err := s.Fleet.ListSnapshots(ctx, nodes[i], ask)
		if err != nil {
			return nil, onNode(nodes[i], err)
		}
		for _, found := range page.GetSnapshots() {
			answer.Entries = append(answer.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: snapshotOf(nodes[i], found)})
		}
		if node, token = nodes[i], page.GetNextPageToken(); token == "" {
			if i++; i < len(nodes) {
				node = nodes[i]
			}
		}
		if most > 0 && len(answer.GetEntries()) >= most && i < len(nodes) {
			answer.NextToken = node + "/" + token
			break
		}
	}
	return answer, nil
}
