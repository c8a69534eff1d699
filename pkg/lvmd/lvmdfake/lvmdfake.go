// Package lvmdfake is lvmd's service without disks: volume groups, volumes and snapshots are
// entries in maps. Tests of both of lvmd's callers use it, the controller's over the uplink
// (package uplinktest) and the node plugin's over a socket (package drivertest), as does the
// benchmark's fleet.
//
// It keeps the contract of the service: calls may be repeated, errors have lvmd's codes and
// reasons, and Watch shows every change in order. Tests can delay and fail calls, lose answers, and
// change the state as an administrator or a failing disk does. It formats and wipes nothing, has no
// journal, and does not serve adoptions.
//
// lvmdfake.go has the calls about volumes, watch.go Watch, snapshots.go snapshots, events.go the
// events of a node, and disks.go its state.
package lvmdfake

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/quantity"
)

// Hooks let a test interfere. Each may be nil. All but Device are called without locks. Those named
// Before run before the call has any effect, and may delay or fail it.
type Hooks struct {
	BeforeCreate func(context.Context, *lvmdv1.CreateVolumeRequest) error
	// AfterCreate fails a create after its effect: a lost answer.
	AfterCreate func(context.Context, *lvmdv1.Volume) error
	// Answer changes only the volume in the answer to a create.
	Answer               func(*lvmdv1.Volume)
	BeforeDelete         func(context.Context, *lvmdv1.DeleteVolumeRequest) error
	BeforeExpand         func(context.Context, *lvmdv1.ExpandVolumeRequest) error
	BeforeSnapshot       func(context.Context, *lvmdv1.CreateSnapshotRequest) error
	BeforeDeleteSnapshot func(context.Context, *lvmdv1.DeleteSnapshotRequest) error
	BeforeKeep           func(context.Context, *lvmdv1.KeepVolumeRequest) error
	BeforeModify         func(context.Context, *lvmdv1.ModifyVolumeRequest) error
	// Device makes or grows the device of a volume, before any caller sees the change. The server's
	// lock is held.
	Device func(*lvmdv1.Volume)
}

// Server is one node's lvmd. All methods may be called concurrently. Messages that it returned or
// got are never changed afterwards.
type Server struct {
	lvmdv1.UnimplementedLVMDServer

	mu      sync.Mutex
	node    string
	hooks   Hooks
	down    bool
	disks   disks
	changes changes
	creates int
	notes   int
}

// New returns a node with new disks.
func New(node string, classes ...Class) *Server {
	return &Server{node: node, disks: newDisks(classes), changes: newChanges()}
}

// Restart begins a new process run of lvmd on the same disks, in a node of the given name. The
// server must not be attached.
func (s *Server) Restart(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node, s.changes = node, newChanges()
}

// Epoch names this process run of lvmd.
func (s *Server) Epoch() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes.epoch
}

// Node returns the node's name.
func (s *Server) Node() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

// Hooks returns the hooks.
func (s *Server) Hooks() Hooks {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hooks
}

// SetHooks replaces the hooks.
func (s *Server) SetHooks(h Hooks) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks = h
}

// SetDown makes all calls but Watch fail with Unavailable.
func (s *Server) SetDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// Volumes returns all volumes, by name.
func (s *Server) Volumes() map[string]*lvmdv1.Volume {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]*lvmdv1.Volume{}
	for _, v := range s.disks.volumes {
		out[v.GetName()] = v
	}
	return out
}

// Creates counts all volumes ever created.
func (s *Server) Creates() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.creates
}

// Notes counts the calls of NoteHealth.
func (s *Server) Notes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.notes
}

// CreateVolume implements the service.
func (s *Server) CreateVolume(ctx context.Context, r *lvmdv1.CreateVolumeRequest) (*lvmdv1.CreateVolumeResponse, error) {
	hooks := s.Hooks()
	if err := before(ctx, hooks.BeforeCreate, r); err != nil {
		return nil, err
	}
	v, err := s.create(r)
	if err != nil {
		return nil, err
	}
	if hooks.AfterCreate != nil {
		if err := hooks.AfterCreate(ctx, v); err != nil {
			return nil, err
		}
	}
	answer := proto.CloneOf(v)
	if hooks.Answer != nil {
		hooks.Answer(answer)
	}
	return &lvmdv1.CreateVolumeResponse{Volume: answer}, nil
}

func (s *Server) create(r *lvmdv1.CreateVolumeRequest) (*lvmdv1.Volume, error) {
	unlock, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if r.GetName() == "" || r.GetRequiredBytes() < 1 || r.GetMode() == lvmdv1.VolumeMode_VOLUME_MODE_UNSPECIFIED {
		return nil, apierror.InvalidField("name, required_bytes, mode", "values are required")
	}
	class, err := s.disks.class(r.GetDeviceClass())
	if err != nil {
		return nil, err
	}
	v := volumeOf(r, class)
	if earlier := s.disks.named(v.GetName()); earlier != nil {
		return earlier, agree(earlier, v)
	}
	if v.GetSource() != nil {
		source, err := s.disks.source(v.GetSource())
		if err != nil {
			return nil, err
		}
		if err := fits(v, source); err != nil {
			return nil, err
		}
		v.SizeBytes = max(v.GetSizeBytes(), source.GetSizeBytes())
	}
	if free := s.disks.free(class); v.GetSizeBytes()+headerBytes(v) > free {
		return nil, apierror.NoSpace("device class %q: %d bytes asked for, %d available", class.Name, v.GetSizeBytes(), free)
	}
	s.disks.identify(v, class)
	s.device(v)
	s.creates++
	s.disks.volumes[v.GetId()] = v
	s.publish(v, s.disks.reports(class.Name))
	return v, nil
}

// agree fails if an existing volume is not the requested one of its name.
func agree(v, requested *lvmdv1.Volume) error {
	if a, b := v.GetSizeBytes(), requested.GetSizeBytes(); a < b || a > b && requested.GetSource() == nil {
		return apierror.RequestDiffers(v.GetName(), fmt.Sprintf("required_bytes is %d, asked for %d", a, b))
	}
	if v.GetDeviceClass() != requested.GetDeviceClass() || v.GetMode() != requested.GetMode() || !proto.Equal(v.GetSource(), requested.GetSource()) {
		return apierror.RequestDiffers(v.GetName(), "its class, mode or source differs")
	}
	return nil
}

func fits(v, source *lvmdv1.Volume) error {
	switch {
	case source.GetMode() != v.GetMode():
		return apierror.InvalidField("source", "it is of another mode")
	case source.GetFsType() != v.GetFsType():
		return apierror.InvalidField("source", "it has another file system")
	case v.GetSource().GetSnapshotId() != "" && source.GetDeviceClass() != v.GetDeviceClass():
		return apierror.NotThin("the snapshot lies in another pool")
	}
	return nil
}

// DeleteVolume implements the service.
func (s *Server) DeleteVolume(ctx context.Context, r *lvmdv1.DeleteVolumeRequest) (*lvmdv1.DeleteVolumeResponse, error) {
	if err := before(ctx, s.Hooks().BeforeDelete, r); err != nil {
		return nil, err
	}
	unlock, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if v := s.disks.volume(r.GetId(), r.GetName()); v != nil {
		if r.GetOnlyProvisional() && !v.GetProvisional() {
			return nil, apierror.VolumeKept(v.GetId())
		}
		delete(s.disks.volumes, v.GetId())
		s.changes.publish(&lvmdv1.WatchResponse{Classes: s.disks.reports(v.GetDeviceClass()), RemovedVolumeIds: []string{v.GetId()}})
	}
	return &lvmdv1.DeleteVolumeResponse{}, nil
}

// GetVolume implements the service.
func (s *Server) GetVolume(_ context.Context, r *lvmdv1.GetVolumeRequest) (*lvmdv1.GetVolumeResponse, error) {
	unlock, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer unlock()
	v := s.disks.volume(r.GetId(), r.GetName())
	if v == nil {
		return nil, apierror.VolumeNotFound(cmp.Or(r.GetId(), r.GetName()))
	}
	return &lvmdv1.GetVolumeResponse{Volume: proto.CloneOf(v)}, nil
}

// ListVolumes implements the service, without paging.
func (s *Server) ListVolumes(context.Context, *lvmdv1.ListVolumesRequest) (*lvmdv1.ListVolumesResponse, error) {
	unlock, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer unlock()
	return &lvmdv1.ListVolumesResponse{Volumes: s.disks.sorted()}, nil
}

// ListClasses implements the service.
func (s *Server) ListClasses(context.Context, *lvmdv1.ListClassesRequest) (*lvmdv1.ListClassesResponse, error) {
	unlock, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer unlock()
	return &lvmdv1.ListClassesResponse{Classes: s.disks.allReports()}, nil
}

// ExpandVolume implements the service.
func (s *Server) ExpandVolume(ctx context.Context, r *lvmdv1.ExpandVolumeRequest) (*lvmdv1.ExpandVolumeResponse, error) {
	if err := before(ctx, s.Hooks().BeforeExpand, r); err != nil {
		return nil, err
	}
	v, err := s.change(r.GetId(), func(v *lvmdv1.Volume) error {
		more := roundUp(r.GetRequiredBytes()) - v.GetSizeBytes()
		if more <= 0 {
			return nil
		}
		class := s.disks.classes[v.GetDeviceClass()]
		if wanted := v.GetSizeBytes() + more; wanted > class.Bytes {
			return apierror.SizeOutOfRange("expanding volume %s to %s: all that its device class has is %s", v.GetId(), quantity.Bytes(wanted), quantity.Bytes(class.Bytes))
		}
		if free := s.disks.free(class); more > free {
			return apierror.NoSpace("expanding volume %s by %s: %s available", v.GetId(), quantity.Bytes(more), quantity.Bytes(free))
		}
		v.SizeBytes += more
		s.device(v)
		return nil
	})
	return &lvmdv1.ExpandVolumeResponse{Volume: v}, err
}

// ModifyVolume implements the service.
func (s *Server) ModifyVolume(ctx context.Context, r *lvmdv1.ModifyVolumeRequest) (*lvmdv1.ModifyVolumeResponse, error) {
	if err := before(ctx, s.Hooks().BeforeModify, r); err != nil {
		return nil, err
	}
	v, err := s.change(r.GetId(), func(v *lvmdv1.Volume) error {
		v.IoLimits = proto.CloneOf(r.GetIoLimits())
		return nil
	})
	return &lvmdv1.ModifyVolumeResponse{Volume: v}, err
}

// NoteEncrypted implements the service.
func (s *Server) NoteEncrypted(_ context.Context, r *lvmdv1.NoteEncryptedRequest) (*lvmdv1.NoteEncryptedResponse, error) {
	_, err := s.change(r.GetId(), func(v *lvmdv1.Volume) error {
		if v.GetEncryption() != names.EncryptionLUKS {
			return apierror.InvalidField("id", "volume %s has encryption %q", v.GetId(), v.GetEncryption())
		}
		v.Encrypted = true
		return nil
	})
	return &lvmdv1.NoteEncryptedResponse{}, err
}

// KeepVolume implements the service.
func (s *Server) KeepVolume(ctx context.Context, r *lvmdv1.KeepVolumeRequest) (*lvmdv1.KeepVolumeResponse, error) {
	if err := before(ctx, s.Hooks().BeforeKeep, r); err != nil {
		return nil, err
	}
	_, err := s.change(r.GetId(), func(v *lvmdv1.Volume) error {
		v.Provisional = false
		return nil
	})
	return &lvmdv1.KeepVolumeResponse{}, err
}

// NoteHealth implements the service.
func (s *Server) NoteHealth(_ context.Context, r *lvmdv1.NoteHealthRequest) (*lvmdv1.NoteHealthResponse, error) {
	_, err := s.change(r.GetId(), func(v *lvmdv1.Volume) error {
		v.Found = r.GetFound()
		s.notes++
		return nil
	})
	return &lvmdv1.NoteHealthResponse{}, err
}

// Error returns an error like lvmd's: a status with an ErrorInfo.
func Error(code codes.Code, reason, message string) error {
	s, err := status.New(code, message).WithDetails(&errdetails.ErrorInfo{Domain: names.ErrorDomain, Reason: reason})
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return s.Err()
}

func before[R any](ctx context.Context, hook func(context.Context, R) error, r R) error {
	if hook == nil {
		return nil
	}
	return hook(ctx, r)
}

// begin takes the lock for a call, unless the server is down.
func (s *Server) begin() (unlock func(), err error) {
	s.mu.Lock()
	if s.down {
		s.mu.Unlock()
		return nil, apierror.DeviceMissing("a disk is gone")
	}
	return s.mu.Unlock, nil
}

// change lets do modify a copy of a volume, which then replaces it and is published with the
// classes of its group.
func (s *Server) change(id string, do func(*lvmdv1.Volume) error) (*lvmdv1.Volume, error) {
	unlock, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer unlock()
	v := proto.CloneOf(s.disks.volumes[id])
	if v == nil {
		return nil, apierror.VolumeNotFound(id)
	}
	if err := do(v); err != nil {
		return nil, err
	}
	s.disks.volumes[id] = v
	s.publish(v, s.disks.reports(v.GetDeviceClass()))
	return proto.CloneOf(v), nil
}

// device requires the lock.
func (s *Server) device(v *lvmdv1.Volume) {
	if s.hooks.Device != nil {
		s.hooks.Device(v)
	}
}

// publish requires the lock.
func (s *Server) publish(v *lvmdv1.Volume, classes []*lvmdv1.DeviceClass) {
	s.changes.publish(&lvmdv1.WatchResponse{Classes: classes, Volumes: []*lvmdv1.Volume{v}})
}
