// Package fakelvmd is an lvmd without disks: the real gRPC service over a
// volume group that exists in memory only, served over the real uplink.
//
// It stands in for nodes in tests and benchmarks of the controller. It keeps
// lvmd's promises (idempotency, typed errors, the rules of Watch) and can be
// told to be slow, to fail, and to lose its answers after acting. It never
// formats, wipes or journals anything.
package fakelvmd

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/luks"
)

// AllocationUnit is the extent size of every class.
const AllocationUnit = 4 << 20

// Class is a device class.
type Class struct {
	Name    string
	Default bool
	// Group is the volume group; empty for one that no other class has.
	Group string
	// Bytes is the size of the volume group, told with each of its classes.
	Bytes int64
	// Mirrored classes keep everything twice, with a unit of bookkeeping beside
	// each copy, as raid1 does.
	Mirrored bool
	// Thin classes have snapshots, which count with their volume's size.
	Thin bool
}

// Hooks let a test interfere. Each may be nil. They are called without locks.
type Hooks struct {
	// BeforeCreate delays or fails a create before it has any effect.
	BeforeCreate func(context.Context, *lvmdv1.CreateVolumeRequest) error
	// AfterCreate fails a create after it took effect: a lost answer.
	AfterCreate func(context.Context, *lvmdv1.Volume) error
	// BeforeDelete delays or fails a delete before it has any effect.
	BeforeDelete func(context.Context, *lvmdv1.DeleteVolumeRequest) error
}

// Server is one node's lvmd. All methods may be called concurrently.
type Server struct {
	lvmdv1.UnimplementedLVMDServer
	disks string // what the UUIDs of the volume groups are made of

	mu         sync.Mutex
	node       string
	epoch      string
	hooks      Hooks
	classes    map[string]*Class
	volumes    map[string]*lvmdv1.Volume   // by id
	snapshots  map[string]*lvmdv1.Snapshot // by id
	generation uint64
	log        []*lvmdv1.WatchResponse // every change of this life
	changed    chan struct{}           // closed and replaced at every change
	creates    int
}

// New makes a node with these classes, on new disks: another server for the same
// node is the node with other disks.
func New(node string, classes ...Class) *Server {
	s := &Server{node: node, disks: newID(), epoch: newID(), changed: make(chan struct{}),
		classes: map[string]*Class{}, volumes: map[string]*lvmdv1.Volume{}, snapshots: map[string]*lvmdv1.Snapshot{}}
	for _, c := range classes {
		s.classes[c.Name] = &c
	}
	return s
}

// Restart begins a new life of lvmd on the same disks, in the node of that name.
// The server must not be attached.
func (s *Server) Restart(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node, s.epoch, s.generation, s.log = node, newID(), 0, nil
}

// Epoch names this life of lvmd.
func (s *Server) Epoch() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch
}

// Node is the name of the node that the server is of.
func (s *Server) Node() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

// SetHooks replaces the hooks.
func (s *Server) SetHooks(h Hooks) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks = h
}

// Resize changes the size of a class' group, as an administrator's vgextend would;
// zero removes the class.
func (s *Server) Resize(class string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes == 0 {
		delete(s.classes, class)
		s.publish(&lvmdv1.WatchResponse{RemovedClasses: []string{class}})
		return
	}
	if s.classes[class] == nil {
		s.classes[class] = &Class{Name: class}
	}
	for _, c := range s.classes {
		if c.group() == s.classes[class].group() {
			c.Bytes = bytes
		}
	}
	s.publish(&lvmdv1.WatchResponse{Classes: s.reports(class)})
}

// Volumes returns the volumes there are, by name.
func (s *Server) Volumes() map[string]*lvmdv1.Volume {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]*lvmdv1.Volume{}
	for _, v := range s.volumes {
		out[v.GetName()] = v
	}
	return out
}

// Creates is how many volumes were ever made.
func (s *Server) Creates() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.creates
}

// CreateVolume implements the service.
func (s *Server) CreateVolume(ctx context.Context, r *lvmdv1.CreateVolumeRequest) (*lvmdv1.CreateVolumeResponse, error) {
	h := s.currentHooks()
	if h.BeforeCreate != nil {
		if err := h.BeforeCreate(ctx, r); err != nil {
			return nil, err
		}
	}
	v, err := s.create(r)
	if err != nil {
		return nil, err
	}
	if h.AfterCreate != nil {
		if err := h.AfterCreate(ctx, v); err != nil {
			return nil, err
		}
	}
	return &lvmdv1.CreateVolumeResponse{Volume: v}, nil
}

func (s *Server) create(r *lvmdv1.CreateVolumeRequest) (*lvmdv1.Volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.GetName() == "" || r.GetRequiredBytes() < 1 || r.GetMode() == lvmdv1.VolumeMode_VOLUME_MODE_UNSPECIFIED {
		return nil, Error(codes.InvalidArgument, names.ReasonInvalidField, "name, size and mode are required")
	}
	class := s.class(r.GetDeviceClass())
	if class == nil {
		return nil, Error(codes.NotFound, names.ReasonClassNotFound, fmt.Sprintf("no device class %q on node %s", r.GetDeviceClass(), s.node))
	}
	fs := r.GetFsType()
	if fs == "" && r.GetMode() == lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM {
		fs = "ext4"
	}
	size := (r.GetRequiredBytes() + AllocationUnit - 1) / AllocationUnit * AllocationUnit
	if v := s.byName(r.GetName()); v != nil {
		if v.GetDeviceClass() != class.Name || v.GetMode() != r.GetMode() || !proto.Equal(v.GetSource(), r.GetSource()) ||
			v.GetSizeBytes() < size || v.GetSizeBytes() > size && v.GetSource() == nil {
			return nil, Error(codes.AlreadyExists, names.ReasonRequestDiffers, "the volume exists with another class, size, mode or source")
		}
		return v, nil
	}
	if r.GetSource() != nil {
		from, err := s.sourceOf(r.GetSource())
		if err == nil {
			err = from.fits(r.GetSource(), class.Name, r.GetMode(), fs)
		}
		if err != nil {
			return nil, err
		}
		size = max(size, from.bytes)
	}
	if size+header(r.GetEncryption()) > s.free(class) {
		return nil, Error(codes.ResourceExhausted, names.ReasonNoSpace,
			fmt.Sprintf("device class %s on node %s has %d bytes left, %d are needed", class.Name, s.node, s.free(class), size))
	}
	v := &lvmdv1.Volume{
		Id: "cv" + newID(), Name: r.GetName(), DeviceClass: class.Name, SizeBytes: size, Mode: r.GetMode(), FsType: fs,
		State: lvmdv1.VolumeState_VOLUME_STATE_READY, Owner: proto.CloneOf(r.GetOwner()), CreatedAt: timestamppb.New(time.Now()),
		VgName: "vg-" + class.group(), VgUuid: s.groupUUID(class), Source: proto.CloneOf(r.GetSource()),
		Encryption: r.GetEncryption(),
	}
	s.volumes[v.GetId()] = v
	s.creates++
	s.publish(&lvmdv1.WatchResponse{Classes: s.reports(class.Name), Volumes: []*lvmdv1.Volume{v}})
	return v, nil
}

// DeleteVolume implements the service.
func (s *Server) DeleteVolume(ctx context.Context, r *lvmdv1.DeleteVolumeRequest) (*lvmdv1.DeleteVolumeResponse, error) {
	if h := s.currentHooks(); h.BeforeDelete != nil {
		if err := h.BeforeDelete(ctx, r); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.volumes[r.GetId()]
	if r.GetName() != "" {
		v = s.byName(r.GetName())
	}
	if v != nil {
		delete(s.volumes, v.GetId())
		s.publish(&lvmdv1.WatchResponse{Classes: s.reports(v.GetDeviceClass()), RemovedVolumeIds: []string{v.GetId()}})
	}
	return &lvmdv1.DeleteVolumeResponse{}, nil
}

// GetVolume implements the service.
func (s *Server) GetVolume(_ context.Context, r *lvmdv1.GetVolumeRequest) (*lvmdv1.GetVolumeResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.volumes[r.GetId()]
	if r.GetName() != "" {
		v = s.byName(r.GetName())
	}
	if v == nil {
		return nil, Error(codes.NotFound, names.ReasonVolumeNotFound, "no such volume")
	}
	return &lvmdv1.GetVolumeResponse{Volume: v}, nil
}

// ListVolumes implements the service, without paging.
func (s *Server) ListVolumes(context.Context, *lvmdv1.ListVolumesRequest) (*lvmdv1.ListVolumesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &lvmdv1.ListVolumesResponse{Volumes: s.sorted()}, nil
}

// ExpandVolume implements the service.
func (s *Server) ExpandVolume(_ context.Context, r *lvmdv1.ExpandVolumeRequest) (*lvmdv1.ExpandVolumeResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.volumes[r.GetId()]
	if old == nil {
		return nil, Error(codes.NotFound, names.ReasonVolumeNotFound, "no such volume")
	}
	size := max(old.GetSizeBytes(), (r.GetRequiredBytes()+AllocationUnit-1)/AllocationUnit*AllocationUnit)
	if size-old.GetSizeBytes() > s.free(s.classes[old.GetDeviceClass()]) {
		return nil, Error(codes.ResourceExhausted, names.ReasonNoSpace, "no room to grow on node "+s.node)
	}
	v := proto.CloneOf(old)
	v.SizeBytes = size
	s.volumes[v.GetId()] = v
	s.publish(&lvmdv1.WatchResponse{Classes: s.reports(v.GetDeviceClass()), Volumes: []*lvmdv1.Volume{v}})
	return &lvmdv1.ExpandVolumeResponse{Volume: v}, nil
}

// Watch implements the service.
func (s *Server) Watch(_ *lvmdv1.WatchRequest, stream lvmdv1.LVMD_WatchServer) error {
	s.mu.Lock()
	full := &lvmdv1.WatchResponse{Epoch: s.epoch, Generation: s.generation, Full: true, Volumes: s.sorted()}
	for _, name := range slices.Sorted(maps.Keys(s.classes)) {
		full.Classes = append(full.Classes, s.report(name))
	}
	next, life := len(s.log), s.epoch
	s.mu.Unlock()
	if err := stream.Send(full); err != nil {
		return err
	}
	for {
		s.mu.Lock()
		if s.epoch != life { // a call that has not noticed its end
			s.mu.Unlock()
			return Error(codes.Unavailable, names.ReasonCommandFailed, "lvmd was restarted")
		}
		pending, changed := s.log[next:], s.changed
		next = len(s.log)
		s.mu.Unlock()
		for _, r := range pending {
			if err := stream.Send(r); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// Error makes an error as lvmd does: a status with an ErrorInfo.
func Error(code codes.Code, reason, message string) error {
	s, err := status.New(code, message).WithDetails(&errdetails.ErrorInfo{Domain: names.ErrorDomain, Reason: reason})
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return s.Err()
}

func (s *Server) currentHooks() Hooks {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hooks
}

// publish is called with the lock held.
func (s *Server) publish(r *lvmdv1.WatchResponse) {
	s.generation++
	r.Epoch, r.Generation = s.epoch, s.generation
	s.log = append(s.log, r)
	close(s.changed)
	s.changed = make(chan struct{})
}

// SetHealth says what is wrong with a volume: conditions of lvmd's, and what the node
// plugin found.
func (s *Server) SetHealth(id string, conditions, found []*lvmdv1.Condition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := proto.CloneOf(s.volumes[id])
	v.Conditions, v.Found = conditions, found
	s.volumes[id] = v
	s.publish(&lvmdv1.WatchResponse{Volumes: []*lvmdv1.Volume{v}})
}

// Pretend has the node report a volume that was not made on it, as a compromised
// one may.
func (s *Server) Pretend(vol *lvmdv1.Volume) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.volumes[vol.GetId()] = vol
	s.publish(&lvmdv1.WatchResponse{Volumes: []*lvmdv1.Volume{vol}})
}

func (s *Server) class(name string) *Class {
	if name != "" {
		return s.classes[name]
	}
	for _, c := range s.classes {
		if c.Default {
			return c
		}
	}
	return nil
}

func (s *Server) byName(name string) *lvmdv1.Volume {
	for _, v := range s.volumes {
		if v.GetName() == name {
			return v
		}
	}
	return nil
}

// group names the volume group of the class.
func (c *Class) group() string {
	if c.Group != "" {
		return c.Group
	}
	return c.Name
}

// costs are what a unit of a volume takes of the group, and a volume besides.
func (c *Class) costs() (unit, volume int64) {
	if c.Mirrored {
		return 2 * AllocationUnit, 2 * AllocationUnit
	}
	return AllocationUnit, 0
}

// header is what an encrypted volume takes besides its size.
func header(encryption string) int64 {
	if encryption == names.EncryptionLUKS {
		return luks.HeaderBytes
	}
	return 0
}

// free is the largest volume that the class can have.
func (s *Server) free(c *Class) int64 {
	free := c.Bytes
	take := func(class string, bytes int64) {
		if of := s.classes[class]; of != nil && of.group() == c.group() {
			unit, volume := of.costs()
			free -= bytes/AllocationUnit*unit + volume
		}
	}
	for _, v := range s.volumes {
		take(v.GetDeviceClass(), v.GetSizeBytes()+header(v.GetEncryption()))
	}
	for _, snapshot := range s.snapshots {
		take(snapshot.GetDeviceClass(), snapshot.GetSizeBytes())
	}
	unit, volume := c.costs()
	return max(0, (free-volume)/unit*AllocationUnit)
}

// reports are those of a class and of all that share its group.
func (s *Server) reports(class string) []*lvmdv1.DeviceClass {
	var out []*lvmdv1.DeviceClass
	for _, name := range slices.Sorted(maps.Keys(s.classes)) {
		if s.classes[name].group() == s.classes[class].group() {
			out = append(out, s.report(name))
		}
	}
	return out
}

func (s *Server) report(name string) *lvmdv1.DeviceClass {
	c := s.classes[name]
	free := s.free(c)
	unit, volume := c.costs()
	layout, total := "linear", c.Bytes
	switch {
	case c.Thin:
		layout, unit, volume = "thin", 0, 0
	case c.Mirrored:
		layout, total = "raid1", max(0, (c.Bytes-volume)/unit*AllocationUnit)
	}
	return &lvmdv1.DeviceClass{
		Name: c.Name, Default: c.Default, Type: layout, Medium: "disk",
		VgName: "vg-" + c.group(), VgUuid: s.groupUUID(c),
		TotalBytes: total, AvailableBytes: free, MaximumVolumeSizeBytes: free,
		MinimumVolumeSizeBytes: AllocationUnit, AllocationUnitBytes: AllocationUnit, UnitCostBytes: unit, VolumeCostBytes: volume,
	}
}

func (s *Server) groupUUID(c *Class) string { return s.disks + "-" + c.group() }

func (s *Server) sorted() []*lvmdv1.Volume {
	return slices.SortedFunc(maps.Values(s.volumes), func(a, b *lvmdv1.Volume) int { return strings.Compare(a.GetId(), b.GetId()) })
}

func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))
}
