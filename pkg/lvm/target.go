package lvm

import (
	"errors"
	"fmt"

	"github.com/carve-csi/carve/pkg/devmapper"
)

// Device-mapper targets that kernels often build as modules. LVM loads modules with modprobe,
// which a container neither has nor may run. When asked for a target's version, the kernel runs
// modprobe itself, in the host's root.
const (
	thinPoolTarget = "thin-pool"
	// snapshotTarget maps none of our volumes, but LVM's command insists on it.
	snapshotTarget = "snapshot"
	raidTarget     = "raid"
)

// provideTarget loads the module if necessary. It returns ErrUnavailable if it cannot.
func provideTarget(target string) error {
	switch known, err := devmapper.ProvideTarget(target); {
	case errors.Is(err, errors.ErrUnsupported):
		// An older kernel. LVM reports a missing target.
		return nil
	case err != nil:
		return fromKernel(err)
	case !known:
		return fmt.Errorf("%w: the kernel has no device-mapper target %q, and no module dm-%s that it could load: "+
			"install the module on the node, or have it loaded there when the node starts", ErrUnavailable, target, target)
	}
	return nil
}
