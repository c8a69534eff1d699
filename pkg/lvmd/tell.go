package lvmd

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// proto is what the service says of a volume. The caller holds the lock.
func (v *volume) proto() *lvmdv1.Volume {
	p := v.fixed()
	v.tell(p)
	return p
}

// fixed says what stays as it is for the volume's life. It is encoded only
// once: whatever can change belongs to tell.
func (v *volume) fixed() *lvmdv1.Volume {
	i := v.rec.Ident
	p := &lvmdv1.Volume{
		Id: v.rec.ID, Name: i.Name, DeviceClass: i.Class,
		Mode:      lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM,
		FsType:    string(i.FSType),
		VgName:    v.group.name,
		Owner:     i.Owner.proto(),
		CreatedAt: timestamppb.New(v.rec.Created),
		Dax:       i.DAX,
	}
	p.Encryption, p.EncryptionDiscards = i.Encryption, i.Discards
	if i.Block {
		p.Mode = lvmdv1.VolumeMode_VOLUME_MODE_BLOCK
	}
	p.FsUuid, p.Profile, p.FsSettings = i.FSUUID, string(i.Profile), i.Settings.Map()
	p.Source = i.source()
	return p
}

// tell says the rest. The caller holds the lock.
func (v *volume) tell(p *lvmdv1.Volume) {
	p.SizeBytes = v.extents*v.group.info.ExtentSize - v.rec.Ident.headerBytes()
	p.State = lvmdv1.VolumeState_VOLUME_STATE_READY
	p.VgUuid = v.group.info.UUID
	p.Conditions = v.allConditions()
	if !v.rec.Emptied.IsZero() {
		p.EmptiedAt = timestamppb.New(v.rec.Emptied)
	}
	if v.making != nil {
		p.CopiedBytes = v.making.copied
	}
	if v.rec.Phase != ready {
		p.State = lvmdv1.VolumeState_VOLUME_STATE_CREATING
		return
	}
	p.DevicePath, p.DeviceMajor, p.DeviceMinor = v.device.Path, v.device.Major, v.device.Minor
}

// listed is a list of volumes, encoded while it is made. Of each volume most
// was encoded before, and nothing is copied but once: a list of a thousand
// volumes is asked for as lightly as one of ten.
type listed struct {
	// expected is how many volumes there will be, at most.
	expected int
	encoded  []byte
	rest     lvmdv1.Volume
}

// volumesField is the number of ListVolumesResponse.volumes.
const volumesField protowire.Number = 1

// add appends a volume. Its encoding is that of two messages after each other,
// which every reader takes for one with the fields of both. The caller holds
// the model's lock.
func (l *listed) add(v *volume) error {
	if v.encoded == nil {
		encoded, err := proto.Marshal(v.fixed())
		if err != nil {
			return err
		}
		v.encoded = encoded
	}
	l.rest.Reset()
	v.tell(&l.rest)
	size := len(v.encoded) + proto.Size(&l.rest)
	if l.encoded == nil {
		// The first is as long as the others, but for a few bytes.
		l.encoded = make([]byte, 0, l.expected*(size+32))
	}
	l.encoded = protowire.AppendTag(l.encoded, volumesField, protowire.BytesType)
	l.encoded = protowire.AppendVarint(l.encoded, uint64(size))
	l.encoded = append(l.encoded, v.encoded...)
	var err error
	l.encoded, err = proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(l.encoded, &l.rest)
	return err
}

// response is a message whose encoding is that of a response with the volumes.
// Only its encoding has them: it is to be sent.
func (l *listed) response(nextPage string) *lvmdv1.ListVolumesResponse {
	r := &lvmdv1.ListVolumesResponse{NextPageToken: nextPage}
	r.ProtoReflect().SetUnknown(l.encoded)
	return r
}
