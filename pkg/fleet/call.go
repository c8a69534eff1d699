package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/uplink"
)

// CreateVolume creates a volume on a node. Errors are NotConnectedError, NoPlaceError or lvmd's
// gRPC statuses; MayHaveHappened reports whether one leaves the outcome unknown.
func (f *Fleet) CreateVolume(ctx context.Context, node string, r *lvmdv1.CreateVolumeRequest) (*lvmdv1.Volume, error) {
	res, err := call(ctx, f, node, r, lvmdv1.LVMDClient.CreateVolume)
	return res.GetVolume(), err
}

// DeleteVolumeByID removes a volume from a node. It succeeds for an unknown id.
func (f *Fleet) DeleteVolumeByID(ctx context.Context, node, id string) error {
	_, err := call(ctx, f, node, &lvmdv1.DeleteVolumeRequest{Id: id}, lvmdv1.LVMDClient.DeleteVolume)
	return err
}

// DeleteProvisionalVolume removes a volume from a node if it is still provisional; otherwise it
// fails with the Reason VOLUME_KEPT. It succeeds for an unknown id.
func (f *Fleet) DeleteProvisionalVolume(ctx context.Context, node, id string) error {
	_, err := call(ctx, f, node, &lvmdv1.DeleteVolumeRequest{Id: id, OnlyProvisional: true}, lvmdv1.LVMDClient.DeleteVolume)
	return err
}

// DeleteVolumeByName removes a volume from a node by name. It succeeds for an unknown name.
func (f *Fleet) DeleteVolumeByName(ctx context.Context, node, name string) error {
	_, err := call(ctx, f, node, &lvmdv1.DeleteVolumeRequest{Name: name}, lvmdv1.LVMDClient.DeleteVolume)
	return err
}

// GetVolumeByName asks a node for one of its volumes.
func (f *Fleet) GetVolumeByName(ctx context.Context, node, name string) (*lvmdv1.Volume, error) {
	res, err := call(ctx, f, node, &lvmdv1.GetVolumeRequest{Name: name}, lvmdv1.LVMDClient.GetVolume)
	return res.GetVolume(), err
}

// ExpandVolume grows a volume on a node.
func (f *Fleet) ExpandVolume(ctx context.Context, node string, r *lvmdv1.ExpandVolumeRequest) (*lvmdv1.Volume, error) {
	res, err := call(ctx, f, node, r, lvmdv1.LVMDClient.ExpandVolume)
	return res.GetVolume(), err
}

// ModifyVolume replaces the attributes of a volume on a node.
func (f *Fleet) ModifyVolume(ctx context.Context, node string, r *lvmdv1.ModifyVolumeRequest) (*lvmdv1.Volume, error) {
	res, err := call(ctx, f, node, r, lvmdv1.LVMDClient.ModifyVolume)
	return res.GetVolume(), err
}

// CreateSnapshot snapshots a volume on a node.
func (f *Fleet) CreateSnapshot(ctx context.Context, node string, r *lvmdv1.CreateSnapshotRequest) (*lvmdv1.Snapshot, error) {
	res, err := call(ctx, f, node, r, lvmdv1.LVMDClient.CreateSnapshot)
	return res.GetSnapshot(), err
}

// DeleteSnapshot removes a snapshot from a node, by id or name. It succeeds for an unknown one.
func (f *Fleet) DeleteSnapshot(ctx context.Context, node string, r *lvmdv1.DeleteSnapshotRequest) error {
	_, err := call(ctx, f, node, r, lvmdv1.LVMDClient.DeleteSnapshot)
	return err
}

// GetSnapshot asks a node for one of its snapshots, by id or name.
func (f *Fleet) GetSnapshot(ctx context.Context, node string, r *lvmdv1.GetSnapshotRequest) (*lvmdv1.Snapshot, error) {
	res, err := call(ctx, f, node, r, lvmdv1.LVMDClient.GetSnapshot)
	return res.GetSnapshot(), err
}

// KeepVolume makes a node record that a PersistentVolume refers to one of its volumes.
func (f *Fleet) KeepVolume(ctx context.Context, node, id string) error {
	_, err := call(ctx, f, node, &lvmdv1.KeepVolumeRequest{Id: id}, lvmdv1.LVMDClient.KeepVolume)
	return err
}

// Announce makes a read-only call on a node to convey the leadership that ctx carries: the node
// then rejects changes of an earlier leader. It does not decode the answer, and does not read one
// of more than maxAnswerBytes.
func (f *Fleet) Announce(ctx context.Context, node string) error {
	_, err := call(ctx, f, node, &lvmdv1.ListClassesRequest{}, lvmdv1.LVMDClient.ListClasses, grpc.ForceCodecV2(unread{protoCodec}))
	if tooLarge(err) {
		return nil // the node has answered
	}
	return err
}

type observed struct {
	*uplink.Session
	onCall func(method string, err error, took time.Duration) // or nil
}

// Invoke does not report a call that found the session retired: it was never made.
func (o observed) Invoke(ctx context.Context, method string, args, reply any, options ...grpc.CallOption) error {
	begin := time.Now()
	err := boundError(o.Session.Invoke(ctx, method, args, reply, options...))
	if o.onCall != nil && !errors.Is(err, uplink.ErrSessionClosed) {
		o.onCall(method, err, time.Since(begin))
	}
	return err
}

// kindOf returns the request's type, or "copy": copies take minutes, other creations do not.
func kindOf(request any) string {
	if r, ok := request.(*lvmdv1.CreateVolumeRequest); ok && r.GetSource() != nil {
		return "copy"
	}
	return fmt.Sprintf("%T", request)
}

// takePlace waits until fewer than callsOfAKind calls like r are in flight to a node. The caller
// calls release once.
func (f *Fleet) takePlace(ctx context.Context, node string, r any) (release func(), err error) {
	f.mu.Lock()
	n := f.nodes[node]
	if n == nil {
		f.mu.Unlock()
		return nil, &NotConnectedError{Node: node}
	}
	kind := kindOf(r)
	if n.calls[kind] == nil {
		n.calls[kind] = semaphore.NewWeighted(callsOfAKind)
	}
	places := n.calls[kind]
	f.mu.Unlock()
	if err := places.Acquire(ctx, 1); err != nil {
		return nil, &NoPlaceError{Cause: err}
	}
	return func() { places.Release(1) }, nil
}

// call makes one call on the node's current session, once it has a place. It retries when the
// session was retired between lookup and use. gRPC rejects an answer of more than maxAnswerBytes
// with ResourceExhausted, and one of more than maxAnswerFields with Internal.
func call[Req, Res any](ctx context.Context, f *Fleet, node string, r *Req,
	method func(lvmdv1.LVMDClient, context.Context, *Req, ...grpc.CallOption) (*Res, error), options ...grpc.CallOption) (*Res, error) {
	options = append([]grpc.CallOption{grpc.MaxCallRecvMsgSize(maxAnswerBytes),
		grpc.ForceCodecV2(answerReader{protoCodec, f.answers})}, options...)
	release, err := f.takePlace(ctx, node, r)
	if err != nil {
		return nil, err
	}
	defer release()
	for range 3 {
		s, err := f.current(node)
		if err != nil {
			return nil, err
		}
		res, err := method(lvmdv1.NewLVMDClient(observed{s, f.onCall}), ctx, r, options...)
		if !errors.Is(err, uplink.ErrSessionClosed) {
			return res, err
		}
	}
	return nil, &NotConnectedError{Node: node}
}
