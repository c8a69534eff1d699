package driver

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/csierror"
	"github.com/carve-csi/carve/pkg/driver/mount"
)

// A file system that was unmounted here can still be mounted in another mount
// namespace. A container that has a host directory above it, without mount
// propagation, keeps all mounts that existed when it started. The kernel keeps
// the file system alive until that container ends.

const shownHolders = 3

// refuseHeld fails if the kernel has the file system mounted: neither a check
// nor a format may run then.
func (d *devices) refuseHeld(v *lvmdv1.Volume) error {
	inUse, err := d.mounts.InUse(deviceOf(v))
	if err != nil || !inUse {
		return err
	}
	return csierror.New(codes.FailedPrecondition, fmt.Errorf("volume %s is still mounted elsewhere on the node and can be neither checked nor repaired: %s",
		v.GetId(), d.holdersOf(deviceOf(v))))
}

func (d *devices) withHolders(err error, device mount.Device) error {
	if inUse, inUseErr := d.mounts.InUse(device); err == nil || inUseErr != nil || !inUse {
		return err
	}
	return fmt.Errorf("%w; %s", err, d.holdersOf(device))
}

// warnOfHolders logs the mounts that still block repair and deletion of an
// unmounted volume.
func (d *devices) warnOfHolders(id string, device mount.Device) {
	if inUse, err := d.mounts.InUse(device); err != nil || !inUse {
		return
	}
	d.log.Warn("an unmounted volume is still mounted elsewhere, and cannot be deleted until that ends", "volume", id,
		"device", device.String(), "by", d.holdersOf(device))
}

func (d *devices) holdersOf(device mount.Device) string {
	var found []string
	points, err := d.mounts.Below("/")
	for _, p := range points {
		if p.Device == device {
			found = append(found, "it is mounted at "+p.Path)
		}
	}
	holders, holdersErr := d.mounts.Holders(device, "")
	for _, h := range holders {
		found = append(found, h.String())
	}
	if more := len(found) - shownHolders; more > 0 {
		found = append(found[:shownHolders], fmt.Sprintf("and %d more", more))
	}
	switch err = errors.Join(err, holdersErr); {
	case len(found) > 0:
		return strings.Join(found, "; ") + ". When it ends, or unmounts it, the volume is free; " +
			"a Pod that mounts the kubelet's directory from the host needs mountPropagation: HostToContainer"
	case err != nil:
		return fmt.Sprintf("it is not known by whom: %v", err)
	}
	return "no mount namespace has it: its file system was left frozen (fsfreeze), which ends when a Pod uses the volume again, " +
		"or a process has a file open on a mount that was detached"
}
