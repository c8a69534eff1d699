package drivertest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
)

// extent is the unit of the fake's volume sizes, in bytes.
const extent = 4 << 20

// LVMD is an lvmd without disks: volumes are entries in a map. Its methods may
// be called concurrently.
type LVMD struct {
	lvmdv1.UnimplementedLVMDServer

	// Created, when set, is called for each volume that CreateVolume makes or
	// ExpandVolume grows, before the answer; it may change the volume.
	Created func(*lvmdv1.Volume)

	// InUse, when set, tells which volumes cannot be deleted now.
	InUse func(*lvmdv1.Volume) bool
	// Room, when above zero, is what volumes can take in sum, in bytes.
	Room int64

	mu      sync.Mutex
	classes []*lvmdv1.DeviceClass
	down    bool
	minted  uint32
	notes   int
	volumes map[string]*lvmdv1.Volume
}

// SetDown makes GetVolume fail with Unavailable while it is set.
func (l *LVMD) SetDown(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
}

// SetClasses sets what ListClasses tells.
func (l *LVMD) SetClasses(classes ...*lvmdv1.DeviceClass) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.classes = classes
}

// ListClasses implements the service.
func (l *LVMD) ListClasses(context.Context, *lvmdv1.ListClassesRequest) (*lvmdv1.ListClassesResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return nil, status.Error(codes.Unavailable, "a disk is gone")
	}
	return &lvmdv1.ListClassesResponse{Classes: l.classes}, nil
}

// Put adds a volume, or replaces the one with its id.
func (l *LVMD) Put(v *lvmdv1.Volume) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.put(v)
}

func (l *LVMD) put(v *lvmdv1.Volume) {
	if l.volumes == nil {
		l.volumes = map[string]*lvmdv1.Volume{}
	}
	l.volumes[v.GetId()] = proto.CloneOf(v)
}

// CreateVolume implements the service. The volume's device is 253:N, where N
// counts the volumes ever made.
func (l *LVMD) CreateVolume(_ context.Context, r *lvmdv1.CreateVolumeRequest) (*lvmdv1.CreateVolumeResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range l.volumes {
		if v.GetName() == r.GetName() {
			if want := roundUp(r.GetRequiredBytes()); want != v.GetSizeBytes() {
				return nil, status.Errorf(codes.AlreadyExists, "volume %q has %d bytes, asked for %d", v.GetName(), v.GetSizeBytes(), want)
			}
			return &lvmdv1.CreateVolumeResponse{Volume: proto.CloneOf(v)}, nil
		}
	}
	var taken int64
	for _, v := range l.volumes {
		taken += v.GetSizeBytes()
	}
	switch {
	case l.down:
		return nil, status.Error(codes.Unavailable, "a disk is gone")
	case r.GetDeviceClass() != "" && r.GetDeviceClass() != "local":
		return nil, status.Errorf(codes.NotFound, "no device class %q; this node offers local", r.GetDeviceClass())
	case l.Room > 0 && taken+roundUp(r.GetRequiredBytes()) > l.Room:
		return nil, status.Errorf(codes.ResourceExhausted, "%d bytes are asked for, %d are free", r.GetRequiredBytes(), l.Room-taken)
	}
	l.minted++
	id := fmt.Sprintf("cv%026d", l.minted)
	v := &lvmdv1.Volume{
		Id: id, Name: r.GetName(), DeviceClass: cmp.Or(r.GetDeviceClass(), "local"),
		SizeBytes: roundUp(r.GetRequiredBytes()), Mode: r.GetMode(), FsType: r.GetFsType(),
		State: lvmdv1.VolumeState_VOLUME_STATE_READY, Owner: proto.CloneOf(r.GetOwner()), Encryption: r.GetEncryption(),
		EncryptionDiscards: r.GetEncryptionDiscards(),
		DevicePath:         "/dev/carve/" + id, DeviceMajor: 253, DeviceMinor: l.minted,
	}
	if v.GetMode() == lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM {
		v.FsType = cmp.Or(v.GetFsType(), "ext4")
		v.FsUuid = fmt.Sprintf("00000000-0000-4000-8000-%012d", l.minted)
		v.Profile, v.FsSettings = r.GetProfile(), r.GetFsSettings()
	}
	if v.GetEncryption() == names.EncryptionEphemeral {
		v.DevicePath = "/dev/mapper/carve.crypt." + id
	}
	if l.Created != nil {
		l.Created(v)
	}
	l.put(v)
	return &lvmdv1.CreateVolumeResponse{Volume: proto.CloneOf(v)}, nil
}

// DeleteVolume implements the service, by id.
func (l *LVMD) DeleteVolume(_ context.Context, r *lvmdv1.DeleteVolumeRequest) (*lvmdv1.DeleteVolumeResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, ok := l.volumes[r.GetId()]
	switch {
	case l.down:
		return nil, status.Error(codes.Unavailable, "a disk is gone")
	case ok && l.InUse != nil && l.InUse(v):
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is in use", r.GetId())
	}
	delete(l.volumes, r.GetId())
	return &lvmdv1.DeleteVolumeResponse{}, nil
}

// NoteEncrypted implements the service.
func (l *LVMD) NoteEncrypted(_ context.Context, r *lvmdv1.NoteEncryptedRequest) (*lvmdv1.NoteEncryptedResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, ok := l.volumes[r.GetId()]
	switch {
	case !ok:
		return nil, status.Errorf(codes.NotFound, "no volume %q", r.GetId())
	case v.GetEncryption() != names.EncryptionLUKS:
		return nil, status.Errorf(codes.InvalidArgument, "id: volume %s has encryption %q", r.GetId(), v.GetEncryption())
	}
	v.Encrypted = true
	return &lvmdv1.NoteEncryptedResponse{}, nil
}

// NoteHealth implements the service.
func (l *LVMD) NoteHealth(_ context.Context, r *lvmdv1.NoteHealthRequest) (*lvmdv1.NoteHealthResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, ok := l.volumes[r.GetId()]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "no volume %q", r.GetId())
	}
	v.Found = r.GetFound()
	l.notes++
	return &lvmdv1.NoteHealthResponse{}, nil
}

// Notes counts the calls of NoteHealth.
func (l *LVMD) Notes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.notes
}

// GetVolume implements the service.
func (l *LVMD) GetVolume(_ context.Context, r *lvmdv1.GetVolumeRequest) (*lvmdv1.GetVolumeResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return nil, status.Error(codes.Unavailable, "a disk is gone")
	}
	for _, v := range l.volumes {
		if r.GetId() != "" && v.GetId() == r.GetId() || r.GetName() != "" && v.GetName() == r.GetName() {
			return &lvmdv1.GetVolumeResponse{Volume: proto.CloneOf(v)}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "no volume %q", r.GetId()+r.GetName())
}

// ListVolumes implements the service, without pages.
func (l *LVMD) ListVolumes(context.Context, *lvmdv1.ListVolumesRequest) (*lvmdv1.ListVolumesResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	answer := &lvmdv1.ListVolumesResponse{}
	for _, v := range l.volumes {
		answer.Volumes = append(answer.Volumes, proto.CloneOf(v))
	}
	slices.SortFunc(answer.Volumes, func(a, b *lvmdv1.Volume) int { return cmp.Compare(a.GetId(), b.GetId()) })
	return answer, nil
}

// ExpandVolume implements the service.
func (l *LVMD) ExpandVolume(_ context.Context, r *lvmdv1.ExpandVolumeRequest) (*lvmdv1.ExpandVolumeResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, ok := l.volumes[r.GetId()]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "no volume %q", r.GetId())
	}
	if size := roundUp(r.GetRequiredBytes()); size > v.GetSizeBytes() {
		v.SizeBytes = size
		if l.Created != nil {
			l.Created(v)
		}
	}
	return &lvmdv1.ExpandVolumeResponse{Volume: proto.CloneOf(v)}, nil
}

func roundUp(size int64) int64 { return (size + extent - 1) / extent * extent }
