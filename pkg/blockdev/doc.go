// Package blockdev lists the kernel's block devices, watches them come and go, opens, reads and
// flushes them without waiting for ever, creates their nodes, and attaches files as devices.
//
// It knows nothing of LVM's metadata and runs no program. Its only state is a Guard's: the
// devices that did not answer.
//
// Vocabulary
//
//	device   a disk, a partition or a virtual device, by the path of its node or by its
//	         Number
//	Handle   a device opened for one user
//	answer   the end of a read or a flush; a dead device gives none, and a process that waits
//	         for it cannot be interrupted
//
// Invariants: nothing waits longer than its context or Guard allows. A device that does not
// answer keeps the threads that already wait for it, and no others.
package blockdev
