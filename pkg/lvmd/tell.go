package lvmd

import (
	"time"

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

// fixed says what stays as it is for the volume's life: whatever can change belongs
// to tell.
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

// tell says the rest, and told what it depends on. The caller holds the lock.
func (v *volume) tell(p *lvmdv1.Volume) {
	p.SizeBytes = v.extents*v.group.info.ExtentSize - v.rec.Ident.headerBytes()
	p.State = lvmdv1.VolumeState_VOLUME_STATE_READY
	p.VgUuid = v.group.info.UUID
	p.Conditions, p.Found = v.allConditions(), v.found
	if !v.rec.Emptied.IsZero() {
		p.EmptiedAt = timestamppb.New(v.rec.Emptied)
	}
	p.Encrypted = v.rec.Encrypted
	if v.making != nil {
		p.CopiedBytes = v.making.copied
	}
	if v.rec.Phase != ready {
		p.State = lvmdv1.VolumeState_VOLUME_STATE_CREATING
		return
	}
	p.DevicePath, p.DeviceMajor, p.DeviceMinor = v.device.Path, v.device.Major, v.device.Minor
}

// told is what tell says of a volume that is well and is not made of another one.
// While it is the same, so is all that is said of the volume.
type told struct {
	size         int64
	phase        phase
	group        string
	emptied      time.Time
	encrypted    bool
	path         string
	major, minor uint32
}

// told is what is to be told of the volume, and false where there is more to tell.
// The caller holds the lock.
func (v *volume) told() (told, bool) {
	if len(v.allConditions()) > 0 || len(v.found) > 0 || v.making != nil {
		return told{}, false
	}
	return told{
		size: v.extents * v.group.info.ExtentSize, phase: v.rec.Phase, group: v.group.info.UUID, emptied: v.rec.Emptied,
		encrypted: v.rec.Encrypted, path: v.device.Path, major: v.device.Major, minor: v.device.Minor,
	}, true
}

// listed is a list of volumes, encoded while it is made. Most of the volumes were
// encoded before, and nothing of those is copied but once: a list of a thousand
// volumes is asked for as lightly as one of ten.
type listed struct {
	// expected is how many volumes there will be, at most.
	expected int
	buffers  *listBuffers
	encoded  []byte
}

// The numbers of ListVolumesResponse's fields.
const (
	volumesField       protowire.Number = 1
	nextPageTokenField protowire.Number = 2
)

// add appends a volume. The caller holds the model's lock.
func (l *listed) add(v *volume) error {
	now, same := v.told()
	if entry := v.entry; same && entry != nil && v.entryOf == now {
		l.append(entry)
		return nil
	}
	encoded, err := proto.Marshal(v.proto())
	if err != nil {
		return err
	}
	entry := make([]byte, 0, protowire.SizeTag(volumesField)+protowire.SizeBytes(len(encoded)))
	entry = protowire.AppendTag(entry, volumesField, protowire.BytesType)
	entry = protowire.AppendBytes(entry, encoded)
	if same {
		v.entry, v.entryOf = entry, now
	}
	l.append(entry)
	return nil
}

func (l *listed) append(entry []byte) {
	if l.encoded == nil {
		// The first is as long as the others, but for a few bytes.
		l.encoded = (*l.buffers.Get(l.expected * (len(entry) + 32)))[:0]
	}
	l.encoded = append(l.encoded, entry...)
}

// response is a message whose encoding is that of a response with the volumes.
// Only its encoding has them, and all else: it is to be sent.
func (l *listed) response(nextPage string) *lvmdv1.ListVolumesResponse {
	if nextPage != "" {
		l.encoded = protowire.AppendTag(l.encoded, nextPageTokenField, protowire.BytesType)
		l.encoded = protowire.AppendString(l.encoded, nextPage)
	}
	r := &lvmdv1.ListVolumesResponse{}
	r.ProtoReflect().SetUnknown(l.encoded)
	return r
}
