package lvmd

import "golang.org/x/sys/unix"

// Capabilities lists the capabilities of lvmd and of the programs that it runs, which are root.
// A test compares the systemd unit with it.
var Capabilities = []int{
	// Device mapper ioctls, loop devices, exclusive opens, and the disk ioctls of LVM and mkfs.
	unix.CAP_SYS_ADMIN,
	// SCSI and NVMe passthrough.
	unix.CAP_SYS_RAWIO,
	// The device mapper's modules, where the kernel does not load them itself.
	unix.CAP_SYS_MODULE,
	// Without udev, LVM creates the device nodes,
	unix.CAP_MKNOD,
	// and sets their owner and mode.
	unix.CAP_CHOWN, unix.CAP_FOWNER,
	// Host files and devices whose mode excludes root.
	unix.CAP_DAC_OVERRIDE,
	// While LVM suspends devices, its memory must not be swapped out to them, and it must run
	// soon.
	unix.CAP_IPC_LOCK, unix.CAP_SYS_NICE,
}
