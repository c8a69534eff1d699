package driver

import "golang.org/x/sys/unix"

// Capabilities lists every capability that the plugin needs. A test in a
// virtual machine runs it with exactly these, and with each one missing.
var Capabilities = []int{
	// Mount, bind and unmount; grow xfs.
	unix.CAP_SYS_ADMIN,
	// Grow ext4 (EXT4_IOC_RESIZE_FS).
	unix.CAP_SYS_RESOURCE,
	// Grow a file system whose root directory belongs to an application and is
	// closed to others: the tools open it.
	unix.CAP_DAC_READ_SEARCH,
	// Give the root directory of a new file system to an application.
	unix.CAP_CHOWN,
}
