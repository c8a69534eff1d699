package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/csierror"
	"github.com/carve-csi/carve/pkg/driver/inline"
	"github.com/carve-csi/carve/pkg/driver/kubelet"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/driver/nofollow"
)

// NodePublishVolume binds the staged file system, or a raw block volume's
// device node, to the target path. It creates and mounts an inline volume
// there.
//
// A read-only raw block volume is read-only in the mount table, but a writer
// can still open the node. The container's device cgroup stops it, as the
// kubelet allows reading only. A privileged container may write to every device
// of its node.
func (n *Node) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	id, staging, target := req.GetVolumeId(), req.GetStagingTargetPath(), req.GetTargetPath()
	if err := checkVolumeID(id); err != nil {
		return nil, err
	}
	if err := n.kubelet.CheckPath("target_path", target); err != nil {
		return nil, err
	}
	want, err := checkCapability(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	if inline.Is(req) {
		want.readOnly = want.readOnly || req.GetReadonly()
		err := n.inline.Publish(ctx, inline.Request{CSI: req, Block: want.block, FSType: want.fsType},
			func(v *lvmdv1.Volume) error { return n.mountInline(v, target, want) })
		if err != nil {
			return nil, err
		}
		n.ioLimits.published()
		return &csi.NodePublishVolumeResponse{}, nil
	}
	if err := n.kubelet.CheckPath("staging_target_path", staging); err != nil {
		return nil, err
	}
	if staging == target {
		return nil, csierror.Invalid("target_path", "%q is not allowed: it is the staging_target_path", target)
	}
	release, err := n.locks.take(id)
	if err != nil {
		return nil, err
	}
	defer release()

	n.unmounter.note(id, target, nil)
	pub := publication{id: id, staging: staging, target: target, exclusive: want.exclusive, node: want.block}
	if want.block {
		err = n.publisher.sourceNode(ctx, &pub, want)
	} else {
		err = n.publisher.sourceMount(ctx, &pub, want)
	}
	if err != nil {
		return nil, err
	}
	pub.readOnly = pub.readOnly || req.GetReadonly()
	if err := n.publisher.publish(pub); err != nil {
		return nil, err
	}
	n.ioLimits.published()
	return &csi.NodePublishVolumeResponse{}, nil
}

type publisher struct {
	mounts     mount.Interface
	kubelet    kubelet.Dir
	devices    *devices
	encryption *encryption
	stager     *stager
}

type publication struct {
	id, staging, target string
	// source is the staging path, or a device node of device.
	source              string
	device              mount.Device
	node                bool
	readOnly, exclusive bool
}

func (b *publisher) sourceNode(ctx context.Context, p *publication, want capability) error {
	v, err := b.encryption.inUse(ctx, p.id)
	if err != nil {
		return err
	}
	if err := want.fits(v); err != nil {
		return err
	}
	p.source, err = b.devices.node(v)
	p.device, p.readOnly = deviceOf(v), want.readOnly
	return err
}

// sourceMount returns the staged mount as the source. It does not ask lvmd: the
// kubelet keeps one staging path per volume, and staging checked it. Only a
// file system that has failed since is staged again.
func (b *publisher) sourceMount(ctx context.Context, p *publication, want capability) error {
	at, err := b.stager.stagedState(p.id, p.staging, want)
	if errors.Is(err, errFailed) {
		if err := b.stageAgain(ctx, p, want); err != nil {
			return err
		}
		at, err = b.stager.stagedState(p.id, p.staging, want)
	}
	switch {
	case err != nil:
		return err
	case !at.Mounted || at.Node:
		return csierror.New(codes.FailedPrecondition, fmt.Errorf("volume %s is not staged at %s", p.id, p.staging))
	}
	p.source, p.device, p.readOnly = p.staging, at.Device, at.ReadOnly
	return nil
}

func (b *publisher) stageAgain(ctx context.Context, p *publication, want capability) error {
	v, err := b.encryption.inUse(ctx, p.id)
	if err != nil {
		return err
	}
	if err := want.fits(v); err != nil {
		return err
	}
	device, err := b.devices.node(v)
	if err != nil {
		return err
	}
	return b.stager.stage(v, device, p.staging, want)
}

func (b *publisher) publish(p publication) error {
	at, err := b.mounts.At(p.target)
	switch {
	case err != nil:
		return fmt.Errorf("volume %s does not answer: %w", p.id, err)
	case at.Mounted && (at.Device != p.device || at.Node != p.node):
		return csierror.New(codes.FailedPrecondition,
			fmt.Errorf("%s is taken: it shows device %v, volume %s is %v", p.target, at.Device, p.id, p.device))
	case at.Mounted && at.ReadOnly != p.readOnly:
		return csierror.New(codes.AlreadyExists,
			fmt.Errorf("volume %s is published at %s with read-only %t already, %t was asked for", p.id, p.target, at.ReadOnly, p.readOnly))
	case at.Mounted:
		return nil
	}
	if p.exclusive {
		if err := b.refuseSecond(p); err != nil {
			return err
		}
	}
	made, err := b.makeTarget(p.target, p.node)
	if err != nil {
		return fmt.Errorf("target_path: %w", err)
	}
	if err := b.mounts.Bind(p.source, p.target, p.readOnly); err != nil {
		err = fmt.Errorf("volume %s: %w", p.id, err)
		if made {
			err = errors.Join(err, nofollow.Remove(string(b.kubelet), p.target))
		}
		return err
	}
	return nil
}

func (b *publisher) refuseSecond(p publication) error {
	paths, err := b.devices.layersOf(p.device)
	if err != nil {
		return err
	}
	for _, path := range paths {
		if path != p.staging && path != p.target {
			return csierror.New(codes.FailedPrecondition,
				fmt.Errorf("volume %s is for one Pod at a time and is in use at %s", p.id, path))
		}
	}
	return nil
}

// makeTarget reports whether it created the mount point: an empty file for a
// device node, else a directory.
func (b *publisher) makeTarget(path string, node bool) (made bool, err error) {
	if node {
		err = nofollow.Touch(string(b.kubelet), path, 0o600)
	} else {
		err = nofollow.Mkdir(string(b.kubelet), path, 0o750)
	}
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return false, err
	}
	if node != info.Mode().IsRegular() || !node && !info.IsDir() {
		return false, csierror.New(codes.FailedPrecondition, fmt.Errorf("%s exists and is a %s", path, kindOfFile(info)))
	}
	return false, nil
}

func kindOfFile(info fs.FileInfo) string {
	switch {
	case info.IsDir():
		return "directory"
	case info.Mode()&fs.ModeSymlink != 0:
		return "symbolic link"
	case info.Mode()&fs.ModeDevice != 0:
		return "device node"
	case info.Mode().IsRegular():
		return "file"
	}
	return info.Mode().Type().String()
}

// NodeUnpublishVolume unmounts the volume from the target path and removes the
// path. It needs no other component, except lvmd to remove an inline volume.
func (n *Node) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	id, target := req.GetVolumeId(), req.GetTargetPath()
	if err := checkVolumeID(id); err != nil {
		return nil, err
	}
	if err := n.kubelet.CheckPath("target_path", target); err != nil {
		return nil, err
	}
	release, err := n.locks.take(id)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := n.unpublish(ctx, id, target); err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}
