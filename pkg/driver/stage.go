package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/driver/csierror"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/filesystem"
)

// NodeStageVolume mounts the volume's file system at the staging path, after a
// check if its superblock asks for one. It first opens a LUKS volume with the
// key from the request's secrets. For a raw block volume it only verifies the
// device.
func (n *Node) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	id, path := req.GetVolumeId(), req.GetStagingTargetPath()
	if err := checkVolumeID(id); err != nil {
		return nil, err
	}
	if err := n.kubelet.CheckPath("staging_target_path", path); err != nil {
		return nil, err
	}
	want, err := checkCapability(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	release, err := n.locks.take(id)
	if err != nil {
		return nil, err
	}
	defer release()
	v, err := n.volumes.Ready(ctx, id)
	if err != nil {
		return nil, n.elsewhere(err, req)
	}
	if err := want.fits(v); err != nil {
		return nil, err
	}
	if err := n.volumes.Keep(ctx, v); err != nil {
		return nil, err
	}
	if err := n.stageVolume(v, path, want, req.GetSecrets()); err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

// elsewhere adds the volume's node to a NotFound error. The kubelet does not
// verify the node of a PersistentVolume without nodeAffinity.
func (n *Node) elsewhere(err error, req *csi.NodeStageVolumeRequest) error {
	on := req.GetVolumeContext()[names.ContextNode]
	if csierror.CodeOf(err) != codes.NotFound || on == "" || on == n.info.name {
		return err
	}
	return csierror.New(codes.NotFound, fmt.Errorf("volume %s is on node %s, this node is %s", req.GetVolumeId(), on, n.info.name))
}

func (n *Node) stageVolume(v *lvmdv1.Volume, path string, want capability, secrets map[string]string) (err error) {
	key, err := keyOf(v, secrets)
	if err != nil {
		return err
	}
	if isLUKS(v) {
		locked := v
		defer func() {
			if err != nil {
				err = errors.Join(err, n.encryption.closeUnused(locked))
			}
		}()
		if v, err = n.encryption.unlock(v, key, path); err != nil {
			return err
		}
	}
	device, err := n.devices.node(v)
	if err != nil || want.block {
		return err
	}
	n.unmounter.note(v.GetId(), path, nil)
	return n.stager.stage(v, device, path, want)
}

// stager mounts file systems. Its callers have verified the devices.
type stager struct {
	background  context.Context
	mounts      mount.Interface
	fileSystems FileSystems
	checker     *checker
	devices     *devices
	unmounter   *unmounter
	metrics     *Metrics
	log         *slog.Logger
}

func (s *stager) stage(v *lvmdv1.Volume, device, path string, want capability) error {
	options, err := filesystem.MountOptions(useOf(v), want.flags)
	if err != nil {
		return csierror.Invalid("volume_capability.mount.mount_flags", "%w", err)
	}
	options = besideClones(filesystem.Type(v.GetFsType()), options)
	if want.readOnly {
		options = append(options, "ro")
	}

	if done, err := s.reuse(v, device, path, want, options); err != nil || done {
		return err
	}
	return s.mount(v, device, path, options)
}

// reuse reports whether the file system is mounted at path as requested. It
// unmounts a failed one.
func (s *stager) reuse(v *lvmdv1.Volume, device, path string, want capability, options []string) (bool, error) {
	at, err := s.stagedState(v.GetId(), path, want)
	if errors.Is(err, errFailed) {
		s.log.Warn("staging again", "volume", v.GetId(), "error", err)
		return false, s.unmountFailed(v, path, err)
	}
	if err != nil || !at.Mounted {
		return false, err
	}
	if err := staged(v, path, at, want.readOnly); err != nil {
		return false, err
	}
	if err := s.sameContext(v, path, options); err != nil {
		return false, err
	}
	if err := s.unmounter.thaw(v.GetId(), path); err != nil {
		return false, err
	}
	err = s.complete(v, device, path, options)
	if errors.Is(err, errNoDAX) {
		return false, s.unmountFailed(v, path, err)
	}
	return err == nil, err
}

func (s *stager) mount(v *lvmdv1.Volume, device, path string, options []string) error {
	if info, err := os.Lstat(path); err != nil {
		return fmt.Errorf("staging_target_path: %w", err)
	} else if !info.IsDir() {
		return csierror.Invalid("staging_target_path", "%s is a %s: a directory is required", path, kindOfFile(info))
	}
	info, err := s.makeMountable(v, device)
	if err != nil {
		return err
	}
	options = append(useOf(v).JournalOptions(info), options...)
	// A file system new to the kernel cannot be frozen. Finding out reads all
	// mounts of the node.
	inUse, err := s.mounts.InUse(deviceOf(v))
	if err != nil {
		return fmt.Errorf("volume %s: %w", v.GetId(), err)
	}
	err = s.mounts.Mount(mount.Source{Node: device, Device: deviceOf(v)}, path, v.GetFsType(), options)
	if err != nil {
		return s.refused(v, explain(fmt.Errorf("volume %s with options %q: %w", v.GetId(), strings.Join(options, ","), err)))
	}
	if inUse {
		err = s.unmounter.thaw(v.GetId(), path)
	}
	if err == nil {
		err = s.complete(v, device, path, options)
	}
	if err != nil {
		return errors.Join(err, s.mounts.Unmount(path))
	}
	return nil
}

// refused returns the error of a failed mount. It is FailedPrecondition if the
// file system failed, or is read-only, in a mount elsewhere, and so blocked
// until that mount ends.
func (s *stager) refused(v *lvmdv1.Volume, err error) error {
	with := s.devices.withHolders(err, deviceOf(v))
	failed := errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EROFS)
	if inUse, inUseErr := s.mounts.InUse(deviceOf(v)); failed && inUseErr == nil && inUse {
		return csierror.New(codes.FailedPrecondition, with)
	}
	return with
}

func explain(err error) error {
	var refused *mount.KernelError
	if explained := errors.As(err, &refused) && len(refused.Messages) > 0; explained || !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return fmt.Errorf("%w: the node's kernel log says why", err)
}

// complete finishes a mount before a Pod gets it; the run that mounted it may
// have been killed before that. The file system must not be frozen, or the
// first write hangs.
func (s *stager) complete(v *lvmdv1.Volume, device, path string, options []string) error {
	if slices.ContainsFunc(options, isDAX) {
		if err := s.verifyDAX(v, path); err != nil {
			return err
		}
	}
	if err := s.setRoot(v, path); err != nil {
		return err
	}
	return s.growToVolume(v, device, path, options)
}

func (s *stager) setRoot(v *lvmdv1.Volume, path string) error {
	owner, mode := v.GetFsSettings()[filesystem.SettingRootOwner], v.GetFsSettings()[filesystem.SettingRootMode]
	if owner == "" && mode == "" || v.GetSource() != nil {
		return nil
	}
	if err := s.fileSystems.SetRoot(path, owner, mode); err != nil {
		return fmt.Errorf("volume %s: %w", v.GetId(), err)
	}
	return nil
}

// errFailed marks a staged file system that must be unmounted, checked and
// mounted before use.
var errFailed = errors.New("its file system failed")

func (s *stager) stagedState(id, staging string, want capability) (mount.State, error) {
	at, err := s.mounts.At(staging)
	switch {
	case err != nil:
		return at, fmt.Errorf("volume %s: %w: %w", id, errFailed, err)
	case !at.Mounted || at.Node:
		return at, nil
	case at.ReadOnly && !want.readOnly:
		return at, fmt.Errorf("volume %s: %w: it is read-only, as after an error", id, errFailed)
	}
	found, err := s.mounts.Errors(at.Device)
	if err == nil && found > 0 {
		err = fmt.Errorf("volume %s: %w: the kernel found %d errors in it", id, errFailed, found)
	}
	return at, err
}

func (s *stager) unmountFailed(v *lvmdv1.Volume, staging string, why error) error {
	paths, err := s.devices.layersOf(deviceOf(v))
	if err != nil {
		return err
	}
	for _, path := range paths {
		if path != staging {
			return csierror.New(codes.FailedPrecondition, fmt.Errorf("%w; it can be repaired when it is no longer in use at %s", why, path))
		}
	}
	if err := s.unmounter.thaw(v.GetId(), staging); err != nil {
		return err
	}
	if err := s.unmounter.unmount(v.GetId(), staging); err != nil {
		return s.devices.withHolders(fmt.Errorf("volume %s: %w", v.GetId(), err), deviceOf(v))
	}
	// Mounting it again would show the file system that failed.
	return s.devices.refuseHeld(v)
}

// staged fails unless the staging path has the requested mount.
func staged(v *lvmdv1.Volume, path string, at mount.State, readOnly bool) error {
	switch {
	case at.Node || at.Device != deviceOf(v):
		return csierror.New(codes.FailedPrecondition,
			fmt.Errorf("%s is taken: device %v is mounted there, volume %s is %v", path, at.Device, v.GetId(), deviceOf(v)))
	case !at.ReadOnly && readOnly:
		return csierror.New(codes.AlreadyExists,
			fmt.Errorf("volume %s is staged for writing at %s already, read-only was asked for", v.GetId(), path))
	}
	return nil
}

var errNoDAX = errors.New("the kernel mounted it without DAX: see the node's kernel log")

// sameContext rejects a volume mounted with another SELinux context: the file
// system keeps it while mounted anywhere.
func (s *stager) sameContext(v *lvmdv1.Volume, path string, options []string) error {
	has, err := s.devices.fsOptions(path)
	if err != nil {
		return err
	}
	if is, want := filesystem.SELinuxContext(has), filesystem.SELinuxContext(options); is != want {
		return csierror.New(codes.AlreadyExists,
			fmt.Errorf("volume %s is staged at %s with the SELinux context %q already, %q was asked for", v.GetId(), path, is, want))
	}
	return nil
}

// verifyDAX asks the kernel: xfs mounts without DAX if unavailable, and reports
// that only in the log.
func (s *stager) verifyDAX(v *lvmdv1.Volume, path string) error {
	has, err := s.devices.fsOptions(path)
	if err != nil || slices.ContainsFunc(has, isDAX) {
		return err
	}
	return csierror.New(codes.FailedPrecondition,
		fmt.Errorf("volume %s is on persistent memory, but %w", v.GetId(), errNoDAX))
}

func isDAX(option string) bool { return option == "dax=always" || option == "dax" }

// NodeUnstageVolume unmounts the file system from the staging path and closes a
// LUKS volume's mapping. It needs no other component: lvmd may be down, the
// volume gone and its device dead.
func (n *Node) NodeUnstageVolume(_ context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	id, path := req.GetVolumeId(), req.GetStagingTargetPath()
	if err := checkVolumeID(id); err != nil {
		return nil, err
	}
	if err := n.kubelet.CheckPath("staging_target_path", path); err != nil {
		return nil, err
	}
	release, err := n.locks.take(id)
	if err != nil {
		return nil, err
	}
	defer release()
	device, shown, err := n.devices.shownAt(path)
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", id, err)
	}
	if err := n.unmounter.thaw(id, path); err != nil {
		return nil, err
	}
	if err := n.unmounter.leave(id, path); err != nil {
		return nil, err
	}
	if shown {
		n.devices.warnOfHolders(id, device)
	}
	if err := n.encryption.closeLUKS(id); err != nil {
		return nil, err
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}
