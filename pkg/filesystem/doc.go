// Package filesystem makes, recognises, checks and grows the file systems
// that volumes carry: ext4, xfs and btrfs, plain or laid out for DAX.
//
// It owns the command lines of mkfs, fsck and the growing tools, and the few
// superblock fields that decide what may be done with a device. It never
// mounts, never chooses whether a volume may be formatted, and knows nothing
// of LVM, Kubernetes or CSI.
//
// Vocabulary: a device is the path of a block device or, in tests, of an image
// file. Unformatted means that no signature of a known file system is there
// that a finished mkfs left. Needs check means that the superblock says that
// the last user did not leave cleanly in a way that a repair tool should see
// before the kernel does. A setting is a class' choice of how a file system is
// made; a profile says what its data are worth.
//
// Invariants: Probe forks nothing and writes nothing. Format, Check and Grow
// run one command each, in a process group of its own that is killed when the
// context ends; ext4 is grown by a system call. Nothing here formats a device that is mounted: the tools
// refuse.
//
// lvmd formats with it when it creates a volume; the node plugin probes,
// checks and grows, and sets the owner and mode of the root. All functions may be called concurrently for different
// devices; callers serialise calls for one device.
package filesystem
