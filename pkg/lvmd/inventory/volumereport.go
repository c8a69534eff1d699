package inventory

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

func (v *Volume) proto() *lvmdv1.Volume {
	i := &v.rec.Ident
	p := &lvmdv1.Volume{
		Id: v.rec.ID, Name: i.Name, DeviceClass: i.Class,
		SizeBytes:  v.bytes() - i.HeaderBytes(),
		Mode:       lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM,
		State:      lvmdv1.VolumeState_VOLUME_STATE_CREATING,
		VgName:     v.group.name,
		VgUuid:     v.group.info.UUID,
		Owner:      i.Owner.Proto(),
		CreatedAt:  timestamppb.New(v.rec.Created),
		Source:     i.SourceProto(),
		Dax:        i.DAX,
		FsType:     string(i.FSType),
		FsUuid:     i.FSUUID,
		Profile:    string(i.Profile),
		FsSettings: i.Settings.Map(),
		Encryption: i.Encryption, EncryptionDiscards: i.Discards, Encrypted: v.rec.Encrypted,
		AdoptedFrom: v.rec.AdoptedFrom, Provisional: isProvisional(v),
		Conditions: v.allConditions(), Found: v.found, IoLimits: v.limits.Proto(),
	}
	if i.Block {
		p.Mode = lvmdv1.VolumeMode_VOLUME_MODE_BLOCK
	}
	if !v.rec.Reformatted.IsZero() {
		p.EmptiedAt = timestamppb.New(v.rec.Reformatted)
	}
	switch {
	case v.source != nil:
		p.CopiedBytes = v.source.copied
	case v.rec.Phase == spec.Creating:
		p.CopiedBytes = v.making.cleared
	}
	if v.rec.Phase == spec.Ready {
		p.State = lvmdv1.VolumeState_VOLUME_STATE_READY
		p.DevicePath, p.DeviceMajor, p.DeviceMinor = v.device.Path, v.device.Major, v.device.Minor
	}
	return p
}
