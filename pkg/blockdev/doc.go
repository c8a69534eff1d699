// Package blockdev is the kernel's block devices as a Go library: it lists
// them, watches them come and go, opens them, reads and flushes them without
// waiting for ever, makes their nodes, and makes files available as devices.
//
// It knows nothing of LVM's metadata and runs no program. It keeps no state but
// a Guard's: which devices did not answer.
//
// Vocabulary
//
//	device   a disk, a partition or what the kernel makes of others, by the path
//	         of its node or by its Number
//	Handle   a device opened for one user
//	answer   the end of a read or a flush; a device that is dead gives none, and
//	         a process that waits for it cannot be interrupted
//
// Invariants: nothing that has a context or a Guard waits longer than that says,
// and a device that does not answer keeps the threads of those that waited
// already and gets no more.
//
// Callers: pkg/lvm, pkg/lvmd, pkg/filesystem, pkg/luks, cmd/lvmd.
package blockdev
