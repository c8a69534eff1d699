package lvmd

import (
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
)

// Snapshots are volumes of the model whose identity says so: they have intents,
// tags, tombstones and removal in common. They have no device, are never wiped
// (their pool zeroes what it gives), and no method about volumes finds them.

// CreateSnapshot implements lvmdv1.LVMDServer.
func (s *Service) CreateSnapshot(ctx context.Context, r *lvmdv1.CreateSnapshotRequest) (*lvmdv1.CreateSnapshotResponse, error) {
	if !idPattern.MatchString(r.GetSourceVolumeId()) {
		return nil, invalidField("source_volume_id", "%q is not a volume's id", r.GetSourceVolumeId())
	}
	if !volumeName.MatchString(r.GetName()) {
		return nil, invalidField("name", "%q is not 1 to 128 of [A-Za-z0-9._-]", r.GetName())
	}
	ident := identity{Name: r.GetName(), Snapshot: true, Source: r.GetSourceVolumeId(), Owner: ownerOf(r.GetOwner())}
	if err := ident.Owner.check(); err != nil {
		return nil, err
	}
	v, op, err := s.admitSnapshot(ident)
	if err != nil {
		return nil, err
	}
	if op != nil {
		select {
		case <-op.done:
			if op.err != nil {
				return nil, op.err
			}
		case <-ctx.Done():
			s.leave(op)
			return nil, publicError("creating snapshot "+ident.Name, ctx.Err())
		}
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	return &lvmdv1.CreateSnapshotResponse{Snapshot: v.snapshotProto()}, nil
}

// admitSnapshot is admit for snapshots.
func (s *Service) admitSnapshot(ident identity) (*volume, *creation, error) {
	m := s.model
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.isStopping() {
		return nil, nil, errStopping
	}
	if v := m.names[ident.key()]; v != nil {
		switch d := v.rec.Ident.differenceOfSnapshot(ident); {
		case d != "":
			return nil, nil, requestDiffers(ident.Name, d)
		case v.rec.Phase == ready:
			return v, nil, nil
		case v.op == nil, v.op.cancelled:
			return nil, nil, operationPending("an earlier creation of snapshot %q is being undone", ident.Name)
		}
		v.op.join()
		return v, v.op, nil
	}
	source, err := m.sourceVolume(ident.Source)
	if err != nil {
		return nil, nil, err
	}
	if err := source.notEncrypted("source_volume_id"); err != nil {
		return nil, nil, err
	}
	if source.pool == nil {
		return nil, nil, notThin("volume %s is of type %s: only thin volumes have snapshots", source.rec.ID, source.layout.Type)
	}
	if err := source.rec.Ident.cloneable("source_volume_id", ident.Source); err != nil {
		return nil, nil, err
	}
	g, p := source.group, source.pool
	ident.Class, ident.Block, ident.FSType, ident.FSUUID = source.rec.Ident.Class, source.rec.Ident.Block, source.rec.Ident.FSType, source.rec.Ident.FSUUID
	ident.Required = source.extents * g.info.ExtentSize
	text := lvm.VolumeText(ident.tags(), 1)
	switch {
	case !g.present || g.info.MissingDevices > 0:
		return nil, nil, deviceMissing("volume group %q, or a device of it, is missing", g.name)
	case !g.wedged.IsZero():
		return nil, nil, notAnswering(g.name, g.wedged)
	case p.refusal() != "":
		return nil, nil, noSpace("a snapshot of volume %s: %s", source.rec.ID, p.refusal())
	case !g.mayHaveMore():
		return nil, nil, g.errTooMany("a snapshot of volume " + source.rec.ID)
	case !g.hasText(text):
		return nil, nil, noSpace("a snapshot of volume %s: the metadata of volume group %q is full: it takes %d of at most %d bytes",
			source.rec.ID, g.name, g.metadata.Size, g.metadata.Limit)
	case source.extents > p.freeRoom():
		return nil, nil, noSpace("a snapshot of volume %s counts with its size, %d bytes; %d are available in thin pool %q (thin.overprovisioning)",
			source.rec.ID, source.extents*g.info.ExtentSize, p.freeRoom()*g.info.ExtentSize, p.name)
	}
	v := &volume{
		group: g, pool: p, layout: source.layout, extents: source.extents, segments: 1, promisedText: text,
		rec: record{ID: newSnapshotID(), Group: g.name, Phase: creating, Ident: ident, Created: time.Now().UTC().Truncate(time.Millisecond)},
	}
	v.promise()
	m.add(v)
	v.make(&making{source: source, snapshot: true})
	op := s.begin(v, s.carveFrom)
	m.publish(g)
	return v, op, nil
}

// differenceOfSnapshot is difference for requests for snapshots, which name
// nothing but the source.
func (i identity) differenceOfSnapshot(o identity) string {
	return identity{Source: i.Source, Owner: i.Owner}.difference(identity{Source: o.Source, Owner: o.Owner})
}

// sourceVolume finds a volume that something can be made of now. The caller
// holds the model's lock.
func (m *model) sourceVolume(id string) (*volume, error) {
	v := m.volumes[id]
	switch {
	case v == nil || v.rec.Phase == deleting:
		if snapshotPattern.MatchString(id) {
			return nil, snapshotNotFound(id)
		}
		return nil, volumeNotFound(id)
	case v.op != nil || v.claimed || v.rec.Phase != ready:
		return nil, operationPending("another operation on %s is under way", id)
	}
	return v, nil
}

// DeleteSnapshot implements lvmdv1.LVMDServer. It runs no command: it makes the
// snapshot a tombstone and leaves the rest to the background.
func (s *Service) DeleteSnapshot(_ context.Context, r *lvmdv1.DeleteSnapshotRequest) (*lvmdv1.DeleteSnapshotResponse, error) {
	s.model.mu.Lock()
	if s.isStopping() {
		s.model.mu.Unlock()
		return nil, errStopping
	}
	v, err := s.model.lookupSnapshot(r.GetId(), r.GetName())
	switch {
	case isNotFound(err):
		s.model.mu.Unlock()
		return &lvmdv1.DeleteSnapshotResponse{}, nil
	case err != nil:
		s.model.mu.Unlock()
		return nil, err
	case v.op != nil && v.op.isUnattended():
		v.op.stop()
		s.model.mu.Unlock()
		return nil, operationPending("snapshot %s is being made, which is cancelled now", v.rec.ID)
	case v.op != nil || v.claimed || v.pins > 0:
		s.model.mu.Unlock()
		return nil, operationPending("another operation on snapshot %s is under way", v.rec.ID)
	}
	v.claimed = true
	tombstone := v.rec
	s.model.mu.Unlock()

	tombstone.Phase = deleting
	if err := s.journal.put(tombstone); err != nil {
		s.unclaim(v)
		return nil, publicError("deleting snapshot "+v.rec.ID, err)
	}
	s.crash("snapshot: tombstone written")
	s.model.mu.Lock()
	v.claimed = false
	s.model.bury(v)
	s.model.mu.Unlock()
	v.group.wakeReaper()
	return &lvmdv1.DeleteSnapshotResponse{}, nil
}

// GetSnapshot implements lvmdv1.LVMDServer.
func (s *Service) GetSnapshot(_ context.Context, r *lvmdv1.GetSnapshotRequest) (*lvmdv1.GetSnapshotResponse, error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	v, err := s.model.lookupSnapshot(r.GetId(), r.GetName())
	if err != nil {
		return nil, err
	}
	return &lvmdv1.GetSnapshotResponse{Snapshot: v.snapshotProto()}, nil
}

// ListSnapshots implements lvmdv1.LVMDServer. Pages are as those of ListVolumes.
func (s *Service) ListSnapshots(_ context.Context, r *lvmdv1.ListSnapshotsRequest) (*lvmdv1.ListSnapshotsResponse, error) {
	if r.GetPageSize() < 0 {
		return nil, invalidField("page_size", "%d is negative; 0 means no limit", r.GetPageSize())
	}
	if t := r.GetPageToken(); t != "" && !snapshotPattern.MatchString(t) {
		return nil, invalidField("page_token", "%q is not one that was given out", t)
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	limit := clampPage(r.GetPageSize())
	resp := &lvmdv1.ListSnapshotsResponse{}
	for _, id := range slices.Sorted(maps.Keys(s.model.volumes)) {
		v := s.model.volumes[id]
		if id <= r.GetPageToken() || !v.rec.Ident.Snapshot || v.rec.Phase == deleting ||
			r.GetSourceVolumeId() != "" && r.GetSourceVolumeId() != v.rec.Ident.Source {
			continue
		}
		if len(resp.Snapshots) == limit {
			resp.NextPageToken = resp.Snapshots[limit-1].GetId()
			break
		}
		resp.Snapshots = append(resp.Snapshots, v.snapshotProto())
	}
	return resp, nil
}

// lookupSnapshot is lookup for snapshots.
func (m *model) lookupSnapshot(id, name string) (*volume, error) {
	switch {
	case id == "" && name == "":
		return nil, invalidField("id", "neither id nor name is set; exactly one must be")
	case id != "" && name != "":
		return nil, invalidField("id", "id and name are both set; exactly one must be")
	case name != "":
		if v := m.names[identity{Name: name, Snapshot: true}.key()]; v != nil {
			return v, nil
		}
		return nil, snapshotNotFound(name)
	}
	if v := m.volumes[id]; v != nil && v.rec.Phase != deleting && v.rec.Ident.Snapshot {
		return v, nil
	}
	return nil, snapshotNotFound(id)
}

// snapshotProto is what the service says of a snapshot. The caller holds the
// model's lock.
func (v *volume) snapshotProto() *lvmdv1.Snapshot {
	i := v.rec.Ident
	p := &lvmdv1.Snapshot{
		Id: v.rec.ID, Name: i.Name, SourceVolumeId: i.Source, DeviceClass: i.Class,
		SizeBytes: v.extents * v.group.info.ExtentSize,
		Mode:      lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM, FsType: string(i.FSType),
		VgName: v.group.name, VgUuid: v.group.info.UUID, Owner: i.Owner.proto(),
		CreatedAt: timestamppb.New(v.rec.Created), Ready: v.rec.Phase == ready, Conditions: v.allConditions(),
	}
	if i.Block {
		p.Mode = lvmdv1.VolumeMode_VOLUME_MODE_BLOCK
	}
	return p
}

// check bounds an owner's strings.
func (o owner) check() error {
	for _, f := range []struct{ field, value string }{
		{"owner.cluster_id", o.Cluster}, {"owner.claim_namespace", o.Namespace},
		{"owner.claim_name", o.Claim}, {"owner.claim_uid", o.ClaimUID},
		{"owner.pod_namespace", o.PodNamespace}, {"owner.pod_name", o.Pod}, {"owner.pod_uid", o.PodUID},
	} {
		if len(f.value) > maxOwnerLength {
			return invalidField(f.field, "it has %d bytes; at most %d are allowed", len(f.value), maxOwnerLength)
		}
	}
	return nil
}
