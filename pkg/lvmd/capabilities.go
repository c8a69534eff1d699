package lvmd

import "golang.org/x/sys/unix"

// Capabilities are all that lvmd keeps, for itself and for the programs that it
// runs; those run as root and so have all of them. The systemd unit has the same
// list, which a test compares.
var Capabilities = []int{
	// The device mapper's control ioctls, loop devices, what LVM and mkfs ask of
	// disks, and claiming them.
	unix.CAP_SYS_ADMIN,
	// Commands to disks that the kernel does not interpret.
	unix.CAP_SYS_RAWIO,
	// Loading the device mapper's modules where the kernel does not do so itself.
	unix.CAP_SYS_MODULE,
	// LVM makes device nodes where there is no udev to do so.
	unix.CAP_MKNOD,
	// And gives them an owner and a mode.
	unix.CAP_CHOWN, unix.CAP_FOWNER,
	// Files on the host, and devices, that root has no permission for.
	unix.CAP_DAC_OVERRIDE,
	// While LVM suspends devices its memory must not be swapped to them, and it
	// must not wait long.
	unix.CAP_IPC_LOCK, unix.CAP_SYS_NICE,
}
