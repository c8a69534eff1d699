// Package lvm is LVM as a Go library: it runs commands, reads their reports,
// types their errors and does the arithmetic of extents.
//
// It owns the `lvm` program: how it is started, what it may see of the host's
// devices, how long it may take and what its words mean. It never decides what
// volumes should exist, keeps no state of its own between calls but the list
// of devices to look at, and knows nothing of Kubernetes, CSI or gRPC.
//
// Vocabulary
//
//	physical volume  a disk (or partition, …) that LVM may carve
//	volume group     one or more physical volumes under one name and one
//	                 metadata
//	logical volume   what is carved; a device-mapper device when active
//	extent           the unit of carving; every size is a whole number of them
//	sequence number  raised by LVM with every change of a group's metadata;
//	                 equal numbers mean an unchanged group
//
// Invariants: no command runs longer than its deadline, none waits for udev,
// none writes backups, none reads the host's lvm.conf, and none opens a
// logical volume to look for LVM metadata in it, so that what tenants write
// never reaches LVM.
//
// Callers: pkg/lvmd, through the Groups interface. Package lvmfake implements
// the same interface in memory; package lvmtest holds the suite both must pass.
package lvm
