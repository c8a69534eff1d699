// Package vm runs test machines: QEMU with Debian's kernel, disks, persistent
// memory and an agent inside that runs commands.
//
// It owns the QEMU process and its command line, from power-on to the process'
// end. It knows nothing of Kubernetes or of what a machine is for; that is said by
// a guest.Config. A Machine runs no longer than the process that started it: the
// kernel kills QEMU when its parent ends, which for the machine is a power cut.
//
// Vocabulary
//
//	disk    a file on the host that the machine sees as /dev/vdb, /dev/vdc, …
//	share   a folder of the host that the machine may mount by its tag (9p)
//	pmem    a stretch of memory that the machine sees as /dev/pmem0 (fsdax)
//	agent   how commands are run inside (package agent)
package vm
