// Package lvm drives LVM: it runs commands, parses their reports and types their errors.
//
// It owns the `lvm` program: its environment, the devices that it sees, its deadlines and its
// messages. It never decides which volumes should exist, remembers nothing between calls but
// where the groups are, and knows nothing of Kubernetes, CSI or gRPC.
//
// Package layout does the arithmetic of extents, package ondisk reads LVM's metadata from
// disks, and blockdev, devmapper and command talk to the kernel. Host is composed of types with
// one job each:
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
//	component        a hidden logical volume below another one
//	sequence number  grows with every change of a group's metadata; equal numbers mean an
//	                 unchanged group
//	inconsistent     said of a device that differs from the metadata, as a killed command
//	                 leaves it
//
// Invariants: no command outlives its deadline, waits for udev, writes backups or reads the
// host's lvm.conf. None opens a logical volume to look for LVM metadata, so LVM never reads
// what tenants write.
//
// pkg/lvmd calls it through the Groups interface. Package lvmfake implements that in memory;
// package lvmtest holds the suite that both must pass.
package lvm
