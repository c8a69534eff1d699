package inventory

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/quantity"
)

// Snapshots are volumes whose identity says so: they share intents, tags, tombstones and removal.
// They have no device, are never wiped (their pool zeroes new blocks), and no method about volumes
// finds them.

// AdmitSnapshot is AdmitCreation for snapshots. ident has the name, the source and the owner; the
// source has the rest.
func (m *Inventory) AdmitSnapshot(ident spec.Identity) (Admission, error) {
	m.lock()
	defer m.unlock()
	if v := m.names[ident.Key()]; v != nil {
		switch d := v.rec.Ident.SnapshotDifference(ident); {
		case d != "":
			return Admission{}, apierror.RequestDiffers(ident.Name, d)
		case v.lifecycle.state == Deleting:
			return Admission{}, errDeleting(v)
		case v.rec.Phase == spec.Ready:
			return Admission{Volume: v}, nil
		case v.op == nil, v.op.cancelled:
			return Admission{}, apierror.OperationPending("an earlier creation of snapshot %q is being undone", ident.Name)
		}
		v.op.join()
		return Admission{Volume: v, Creation: v.op}, nil
	}
	origin, err := m.sourceVolume(ident.Source)
	if err != nil {
		return Admission{}, err
	}
	if err := origin.notEncrypted("source_volume_id"); err != nil {
		return Admission{}, err
	}
	from := &origin.rec.Ident
	if origin.pool == nil {
		return Admission{}, apierror.NotThin("volume %s is of type %s: only thin volumes have snapshots", origin.rec.ID, origin.layout.Type)
	}
	if err := from.CheckSource("source_volume_id", ident.Source); err != nil {
		return Admission{}, err
	}
	ident.Class, ident.Block, ident.FSType, ident.FSUUID = from.Class, from.Block, from.FSType, from.FSUUID
	ident.Required = origin.bytes()
	text := layout.VolumeText(append(ident.Tags(), spec.TagMaking), 1)
	if err := origin.snapshotFits(text); err != nil {
		return Admission{}, err
	}
	v := &Volume{
		group:      origin.group,
		volumeScan: volumeScan{pool: origin.pool, layout: origin.layout, extents: origin.extents, segments: 1},
		volumeWork: volumeWork{reservedText: text},
		recorded:   recorded{newRecord(spec.NewSnapshotID(), origin.group, ident)},
	}
	op := m.admit(v, &source{volume: origin, snapshot: true})
	m.publish(v.group)
	return Admission{Volume: v, Creation: op, New: true, Source: m.source(v)}, nil
}

// snapshotFits fails if the group or the pool lacks space for a snapshot with text bytes of
// metadata.
func (v *Volume) snapshotFits(text int64) error {
	g, p := v.group, v.pool
	switch {
	case !g.isUsable():
		return apierror.DeviceMissing("volume group %q, or a device of it, is missing", g.name)
	case g.responding() != nil:
		return g.responding()
	case p.refusal() != "":
		return apierror.NoSpace("a snapshot of volume %s: %s", v.rec.ID, p.refusal())
	case !g.mayHaveMore():
		return errTooMany(g, "a snapshot of volume "+v.rec.ID)
	case !g.hasText(text):
		return apierror.NoSpace("a snapshot of volume %s: the metadata of volume group %q is full: it takes %s of at most %s",
			v.rec.ID, g.name, quantity.Bytes(g.metadata.Size), quantity.Bytes(g.metadata.Limit))
	case v.extents > p.free():
		return apierror.NoSpace("a snapshot of volume %s counts with its size, %s; %s are available in thin pool %q (thin.overprovisioning)",
			v.rec.ID, quantity.Bytes(v.bytes()), quantity.Bytes(p.free()*g.info.ExtentSize), p.name)
	}
	return nil
}

func (v *Volume) snapshotProto() *lvmdv1.Snapshot {
	i := &v.rec.Ident
	p := &lvmdv1.Snapshot{
		Id: v.rec.ID, Name: i.Name, SourceVolumeId: i.Source, DeviceClass: i.Class,
		SizeBytes: v.bytes(),
		Mode:      lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM, FsType: string(i.FSType),
		VgName: v.group.name, VgUuid: v.group.info.UUID, Owner: i.Owner.Proto(),
		CreatedAt: timestamppb.New(v.rec.Created), Ready: v.rec.Phase == spec.Ready, Conditions: v.allConditions(),
	}
	if i.Block {
		p.Mode = lvmdv1.VolumeMode_VOLUME_MODE_BLOCK
	}
	return p
}
