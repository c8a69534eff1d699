// Package lvm is LVM as a Go library: it runs commands, reads their reports and
// types their errors.
//
// It owns the `lvm` program: how it is started, what it may see of the host's
// devices, how long it may take and what its words mean. It never decides what
// volumes should exist, keeps no state of its own between calls but where the
// groups are, and knows nothing of Kubernetes, CSI or gRPC.
//
// Package layout has the arithmetic of extents, package ondisk reads LVM's
// metadata from disks, and blockdev, devmapper and command the kernel's side.
// Host is made of types with one job each:
//
//	disks         on which disks the groups are; reading there
//	commands      running LVM, and making durable what it wrote
//	volumes       volumes of groups, and their repair after a crash
//	thinPools     thin pools, and the volumes in them
//	messages      what a killed command left unsent to thin pools
//	inspection    devices of volumes, by the kernel
//	encryption    encrypted devices of volumes
//	provisioning  groups
//
// Vocabulary
//
//	physical volume  a disk (or partition, …) that LVM may carve
//	volume group     one or more physical volumes under one name and one
//	                 metadata
//	logical volume   what is carved; a device-mapper device when active
//	component        a hidden logical volume that another one is made of
//	extent           the unit of carving; every size is a whole number of them
//	sequence number  raised by LVM with every change of a group's metadata;
//	                 equal numbers mean an unchanged group
//	inconsistent     said of a device that is not what the metadata says, as a
//	                 killed command leaves it
//
// Invariants: no command runs longer than its deadline, none waits for udev,
// none writes backups, none reads the host's lvm.conf, and none opens a
// logical volume to look for LVM metadata in it, so that what tenants write
// never reaches LVM.
//
// Callers: pkg/lvmd, through the Groups interface. Package lvmfake implements
// the same interface in memory; package lvmtest holds the suite both must pass.
package lvm
