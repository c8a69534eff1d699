// Package filesystem makes, recognizes, checks and grows the file systems of
// volumes: ext4, xfs and btrfs, optionally laid out for DAX.
//
// It builds the command lines of mkfs, fsck and the growing tools, and reads
// the superblock fields that decide how to treat a device. It never mounts,
// never decides whether a volume may be formatted, and knows nothing of LVM,
// Kubernetes or CSI.
//
// Vocabulary: a device is the path of a block device or, in tests, an image
// file. Unformatted means without a known file system from a finished mkfs. A
// file system needs a check if its superblock shows that its last user left it
// in a state that a repair tool should see before the kernel. A setting is a
// class's choice for mkfs; a profile is the worth of the data.
//
// Invariants: Probe forks nothing and writes nothing. Format, Check and Grow
// run one command each, in its own process group, which is killed when the
// context ends; a system call grows ext4. The tools refuse to format a mounted
// device.
//
// lvmd formats new volumes; the node plugin probes, checks and grows, and sets
// the root directory's owner and mode. Functions may be called concurrently for
// different devices; callers serialize calls for one device.
package filesystem
