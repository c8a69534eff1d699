package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/filesystem"
)

// NodeStageVolume mounts the volume's file system at the staging path, after a
// check if its last user left it in need of one. A raw block volume has
// nothing to stage; its device is only looked at. Before either, a volume that is
// encrypted with a key from the request's secrets is opened.
func (n *Node) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	id, path := req.GetVolumeId(), req.GetStagingTargetPath()
	if err := checkVolumeID(id); err != nil {
		return nil, err
	}
	if err := n.checkPath("staging_target_path", path); err != nil {
		return nil, err
	}
	want, err := checkCapability(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	release, err := n.lock(id)
	if err != nil {
		return nil, err
	}
	defer release()
	v, err := n.usable(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := want.fits(v); err != nil {
		return nil, err
	}
	if err := n.stageVolume(v, path, want, req.GetSecrets()); err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

// stageVolume opens the volume, if it is encrypted with a kept key, and stages it.
func (n *Node) stageVolume(v *lvmdv1.Volume, path string, want capability, secrets map[string]string) (err error) {
	key, err := keyOf(v, secrets)
	if err != nil {
		return err
	}
	if isLUKS(v) {
		locked := v
		defer func() {
			if err != nil {
				err = errors.Join(err, n.shutUnused(locked))
			}
		}()
		if v, err = n.unlock(v, key, path); err != nil {
			return err
		}
	}
	device, err := n.deviceNode(v)
	if err != nil || want.block {
		return err
	}
	return n.stage(v, device, path, want)
}

func (n *Node) stage(v *lvmdv1.Volume, device, path string, want capability) error {
	t := filesystem.Type(v.GetFsType())
	options, err := filesystem.MountOptions(useOf(v), want.flags)
	if err != nil {
		return invalid("volume_capability.mount.mount_flags", "%w", err)
	}
	options = besideClones(t, options)
	if want.readOnly {
		options = append(options, "ro")
	}

	at, err := n.look(v.GetId(), path, want)
	if errors.Is(err, errSick) {
		n.options.Log.Warn("staging again", "volume", v.GetId(), "error", err)
		at, err = mount.State{}, n.takeOffSick(v, path, err)
	}
	if err != nil {
		return err
	}
	if at.Mounted {
		if err := staged(v, path, at, want.readOnly); err != nil {
			return err
		}
		if err := n.sameContext(v, path, options); err != nil {
			return err
		}
		err := n.complete(v, device, path, options)
		if !errors.Is(err, errNoDAX) {
			return err
		}
		if err := n.takeOffSick(v, path, err); err != nil {
			return err
		}
	}
	// mount(2) would follow a symbolic link.
	if info, err := os.Lstat(path); err != nil {
		return fmt.Errorf("staging_target_path: %w", err)
	} else if !info.IsDir() {
		return invalid("staging_target_path", "%s is a %s: a directory is required", path, kindOfFile(info))
	}
	if err := n.makeMountable(v, device); err != nil {
		return err
	}
	if err := n.options.Mounts.Mount(device, path, string(t), options); err != nil {
		err = fmt.Errorf("volume %s with options %q: %w", v.GetId(), strings.Join(options, ","), err)
		if errors.Is(err, syscall.EINVAL) {
			// Such as context= on a node without SELinux.
			err = fmt.Errorf("%w: the node's kernel log says why", err)
		}
		return n.withHolders(err, deviceOf(v))
	}
	if err := n.complete(v, device, path, options); err != nil {
		return errors.Join(err, n.options.Mounts.Off(path))
	}
	return nil
}

// complete does what a mounted file system needs before anybody gets it. Whoever
// mounted it may have been killed before that.
func (n *Node) complete(v *lvmdv1.Volume, device, path string, options []string) error {
	if slices.ContainsFunc(options, isDAX) {
		if err := n.verifyDAX(v, path); err != nil {
			return err
		}
	}
	return n.fill(v, device, path, options)
}

// errSick marks a staged file system that has to be unmounted, checked and
// mounted before anyone can use it.
var errSick = errors.New("its file system failed")

// look returns what is at the staging path, or errSick.
func (n *Node) look(id, staging string, want capability) (mount.State, error) {
	at, err := n.options.Mounts.At(staging)
	switch {
	case err != nil:
		return at, fmt.Errorf("volume %s: %w: %w", id, errSick, err)
	case !at.Mounted || at.Node:
		return at, nil
	case at.ReadOnly && !want.readOnly:
		return at, fmt.Errorf("volume %s: %w: it is read-only, as after an error", id, errSick)
	}
	found, err := n.options.Mounts.Errors(at.Device)
	if err == nil && found > 0 {
		err = fmt.Errorf("volume %s: %w: the kernel found %d errors in it", id, errSick, found)
	}
	return at, err
}

// takeOffSick takes a file system that failed off its staging path, unless
// someone uses it.
func (n *Node) takeOffSick(v *lvmdv1.Volume, staging string, why error) error {
	paths, err := n.layersOf(deviceOf(v))
	if err != nil {
		return err
	}
	for _, path := range paths {
		if path != staging {
			return &failure{codes.FailedPrecondition, fmt.Errorf("%w; it can be repaired when it is no longer in use at %s", why, path)}
		}
	}
	if err := n.options.Mounts.Off(staging); err != nil {
		return n.withHolders(fmt.Errorf("volume %s: %w", v.GetId(), err), deviceOf(v))
	}
	// Mounted again, it would still be the file system that failed.
	return n.refuseHeld(v)
}

// staged says whether what is at the staging path already is what was asked
// for.
func staged(v *lvmdv1.Volume, path string, at mount.State, readOnly bool) error {
	switch {
	case at.Node || at.Device != deviceOf(v):
		return &failure{codes.FailedPrecondition,
			fmt.Errorf("%s is taken: device %v is mounted there, volume %s is %v", path, at.Device, v.GetId(), deviceOf(v))}
	case !at.ReadOnly && readOnly:
		return &failure{codes.AlreadyExists,
			fmt.Errorf("volume %s is staged for writing at %s already, read-only was asked for", v.GetId(), path)}
	}
	return nil
}

// errNoDAX marks a staged file system that nobody gets.
var errNoDAX = errors.New("the kernel mounted it without DAX: see the node's kernel log")

// sameContext refuses a volume whose files have another SELinux context than was
// asked for: it belongs to the file system as long as that is mounted anywhere.
func (n *Node) sameContext(v *lvmdv1.Volume, path string, options []string) error {
	has, err := n.fsOptions(path)
	if err != nil {
		return err
	}
	if is, want := filesystem.SELinuxContext(has), filesystem.SELinuxContext(options); is != want {
		return &failure{codes.AlreadyExists,
			fmt.Errorf("volume %s is staged at %s with the SELinux context %q already, %q was asked for", v.GetId(), path, is, want)}
	}
	return nil
}

// fsOptions returns the options of the file system that is seen at a path.
func (n *Node) fsOptions(path string) ([]string, error) {
	points, err := n.options.Mounts.Below(n.options.KubeletDir)
	if err != nil {
		return nil, err
	}
	for _, p := range slices.Backward(points) {
		if p.Path == path {
			return p.FSOptions, nil
		}
	}
	return nil, nil
}

// verifyDAX asks the kernel: xfs mounts without DAX, where it cannot be had,
// and says so only in the log.
func (n *Node) verifyDAX(v *lvmdv1.Volume, path string) error {
	has, err := n.fsOptions(path)
	if err != nil || slices.ContainsFunc(has, isDAX) {
		return err
	}
	return &failure{codes.FailedPrecondition,
		fmt.Errorf("volume %s is on persistent memory, but %w", v.GetId(), errNoDAX)}
}

func isDAX(option string) bool { return option == "dax=always" || option == "dax" }

// NodeUnstageVolume takes the volume's file system off the staging path, and
// closes what staging has opened. It asks nobody: lvmd may be down, the volume gone and its device dead.
func (n *Node) NodeUnstageVolume(_ context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	id, path := req.GetVolumeId(), req.GetStagingTargetPath()
	if err := checkVolumeID(id); err != nil {
		return nil, err
	}
	if err := n.checkPath("staging_target_path", path); err != nil {
		return nil, err
	}
	release, err := n.lock(id)
	if err != nil {
		return nil, err
	}
	defer release()
	device, shown, err := n.shownAt(path)
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", id, err)
	}
	if err := n.options.Mounts.Off(path); err != nil {
		return nil, fmt.Errorf("volume %s: %w", id, err)
	}
	if shown {
		n.warnOfHolders(id, device)
	}
	if err := n.shut(id); err != nil {
		return nil, err
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// lock takes the volume's lock for a call that changes something.
func (n *Node) lock(id string) (release func(), err error) {
	release, ok := n.locks.acquire(id)
	if !ok {
		return nil, &failure{codes.Aborted, fmt.Errorf("another operation on volume %s is running", id)}
	}
	return release, nil
}
