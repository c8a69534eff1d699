package lvm

import (
	"errors"
	"fmt"

	"github.com/carve-csi/carve/pkg/devmapper"
)

// Device-mapper targets that volumes of some types need, and that kernels often
// have as modules. LVM loads a module with a program, modprobe, which is on the
// host, and which a container can neither see nor has the rights for; asked for a
// target's version, the kernel runs it by itself, in the host's root.
const (
	thinPoolTarget = "thin-pool"
	// snapshotTarget maps none of ours, but LVM's command insists on it.
	snapshotTarget = "snapshot"
	raidTarget     = "raid"
)

// provideTarget has the kernel load what maps volumes with a target, if it has to.
// ErrUnavailable when it cannot.
func provideTarget(target string) error {
	switch known, err := devmapper.ProvideTarget(target); {
	case errors.Is(err, errors.ErrUnsupported):
		// An older kernel, which cannot be asked. LVM says what is missing.
		return nil
	case err != nil:
		return fromKernel(err)
	case !known:
		return fmt.Errorf("%w: the kernel has no device-mapper target %q, and no module dm-%s that it could load: "+
			"install the module on the node, or have it loaded there when the node starts", ErrUnavailable, target, target)
	}
	return nil
}
