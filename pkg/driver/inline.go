package driver

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/csierror"
	"github.com/carve-csi/carve/pkg/driver/inline"
	"github.com/carve-csi/carve/pkg/driver/nofollow"
)

func (n *Node) mountInline(v *lvmdv1.Volume, target string, want capability) error {
	// The sweep locks by this id.
	release, err := n.locks.take(v.GetId())
	if err != nil {
		return err
	}
	defer release()
	device, err := n.devices.node(v)
	if err != nil {
		return err
	}
	made := false
	// If At fails, stage handles it.
	if at, err := n.devices.mounts.At(target); err == nil && !at.Mounted {
		if made, err = n.publisher.makeTarget(target, false); err != nil {
			return fmt.Errorf("target_path: %w", err)
		}
	}
	if err = n.stager.stage(v, device, target, want); err != nil && made {
		err = errors.Join(err, nofollow.Remove(string(n.kubelet), target))
	}
	return err
}

func (n *Node) find(ctx context.Context, id string) (*lvmdv1.Volume, error) {
	if !inline.IsID(id) {
		return n.volumes.Volume(ctx, id)
	}
	v, err := n.volumes.Named(ctx, id)
	if err == nil && v == nil {
		err = csierror.New(codes.NotFound, fmt.Errorf("there is no inline volume %q", id))
	}
	return v, err
}

func (n *Node) unpublish(ctx context.Context, id, target string) error {
	if inline.IsID(id) { // it is not staged: the mount is the last one
		if err := n.unmounter.thaw(id, target); err != nil {
			return err
		}
	}
	if err := n.unmounter.leave(id, target); err != nil {
		return err
	}
	if inline.IsID(id) {
		if err := n.inline.Remove(ctx, id); err != nil {
			return err
		}
	}
	return n.unmounter.removeTarget(id, target)
}
