package driver

import "golang.org/x/sys/unix"

// Capabilities are all that the plugin needs of the kernel, and each is needed:
// a test in a virtual machine runs it with these, and with each one less.
var Capabilities = []int{
	// Mounting, binding and unmounting, and growing xfs.
	unix.CAP_SYS_ADMIN,
	// Growing ext4 (EXT4_IOC_RESIZE_FS).
	unix.CAP_SYS_RESOURCE,
	// Growing a file system whose root directory belongs to an application and
	// is closed to others: the tools open it.
	unix.CAP_DAC_READ_SEARCH,
	// Giving the root directory of a new file system to an application.
	unix.CAP_CHOWN,
}
