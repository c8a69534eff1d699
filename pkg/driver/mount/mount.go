// Package mount is the node plugin's view of the kernel's mount table: it
// mounts file systems, binds them and device nodes to further paths, unmounts
// them again and reports what is where.
//
// It owns the system calls and nothing else: no retries, no locks, no policy
// about which path or option is allowed, and no process is ever forked.
//
// Vocabulary: a layer is one mount at a path; several at the same path hide
// each other, and only the topmost is seen. A device is a pair of numbers; a
// path to a device node is only a way to find them. What is published at a
// path is identified by the device behind it: the one that the mounted file system
// is on, or the one that the bound node stands for.
//
// Invariants: a mount appears at its path complete, with all its options, or
// not at all. Unmount removes every layer, and works on mounts whose device is
// dead. A symbolic link at or on the way to a path of a mount is refused.
//
// The kubelet looks at the same mounts with k8s.io/mount-utils, and the tests on real mounts
// do, too. What this package does differently: Mount, Unmount and New of mount-utils fork;
// SafeFormatAndMount formats what blkid cannot name; ResizeFs cannot be cancelled; IsMountPoint
// and IsLikelyNotMountPoint follow links, and do not say which device is there; ParseMountInfo
// fails on the whole table for one mount without a source, which github.com/moby/sys/mountinfo
// reads; FakeMounter knows no devices, layers or propagation.
//
// The CSI node service in pkg/driver is the caller. Package mountfake has the
// fake, mounttest the suite that both pass.
package mount

import "fmt"

// Device identifies a block device by its numbers.
type Device struct {
	Major, Minor uint32
}

// String returns "major:minor", as the kernel writes it in sysfs.
func (d Device) String() string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

// Source is a device with a file system.
type Source struct {
	// Node is the path of a node of the device, which may be a link.
	Node string
	// Device is which device that has to be; zero is the one that the node stands for.
	Device Device
}

// State is what At finds at a path.
type State struct {
	// Mounted is false when the path is missing or is not the root of a mount;
	// the other fields are zero then.
	Mounted bool
	// Device is the block device that the topmost layer shows: that of its file
	// system, or the one that the bound device node stands for.
	Device Device
	// Node is true when a device node is bound to the path.
	Node bool
	// ReadOnly is true when the topmost layer, or the file system below it,
	// cannot be written to.
	ReadOnly bool
}

// Point is one layer in the mount table.
type Point struct {
	Path string
	// Device of the file system. For a bound device node that is the file
	// system the node lies in; At returns which device it stands for.
	Device Device
	// Root is the path within the file system that is mounted: "/" unless a
	// directory or file of it is bound.
	Root string
	// FSType is the file system's type, e.g. "ext4" or "devtmpfs".
	FSType string
	// Options belong to the layer: "ro", "noatime". FSOptions belong to the file
	// system and are the same in all its layers: "ro", "dax=always".
	Options, FSOptions []string
}

// Usage is how full a file system is.
type Usage struct {
	// TotalBytes, AvailableBytes and UsedBytes: available is what unprivileged
	// users can still write, and can be less than what is not used.
	TotalBytes, AvailableBytes, UsedBytes int64
	// TotalInodes, FreeInodes and UsedInodes. A file system that makes inodes
	// as needed reports how many it could have.
	TotalInodes, FreeInodes, UsedInodes int64
}

// Interface is what the node service asks of the kernel. All methods may be
// called concurrently; callers serialise calls that change one path. Errors
// wrap the errno.
type Interface interface {
	// Mount mounts the file system on a device at a directory. Options are
	// those of mount(8), one each, already checked; both those of the layer and
	// those of the file system, of which later ones win. Before the mount is seen at
	// the path, the device, the type and the attributes of the layer are compared with
	// what was asked for: ErrUnverified. What the kernel refuses is a *KernelError, with
	// what the kernel says of it. EBUSY: the path shows the file system already.
	Mount(source Source, path, fsType string, options []string) error
	// Bind makes the mount at source, or the device node at source, appear at
	// the existing directory or file path too.
	Bind(source, path string, readOnly bool) error
	// Unmount removes all layers at the path. It succeeds when there are none and
	// when the path does not exist. EBUSY: the topmost layer is in use.
	Unmount(path string) error
	// UnmountBelow unmounts what others mounted below the mount at the path, deepest first,
	// and returns what it unmounted. A mount is left, with a *BelowError, if it is in use, if
	// the same would be unmounted elsewhere than in copies of the one at the path, or if it
	// is seen below one of the users' paths too: others have the volume in use there.
	UnmountBelow(path string, users []string) ([]Point, error)
	// Thaw thaws the file system mounted at the path (fsfreeze(8)), and
	// reports whether it was frozen. It can block as long as the device does.
	Thaw(path string) (bool, error)
	// At looks at one path, at a cost that does not depend on how many mounts
	// there are. A dead file system can make it fail with EIO.
	At(path string) (State, error)
	// Below returns all layers whose path is strictly below dir, in the order of
	// their paths. It reads the whole mount table and touches no file system.
	Below(dir string) ([]Point, error)
	// Node returns the device that a node in the file system stands for. ENOTBLK
	// when it is something else.
	Node(path string) (Device, error)
	// Usage asks the file system mounted at the path how full it is.
	Usage(path string) (Usage, error)
	// Errors returns how many errors the kernel has found in the ext4 file system
	// mounted from the device, since it was last repaired. Above zero it takes
	// no more writes, unless its options say otherwise; newer kernels show that
	// nowhere else. Zero for other file systems: xfs fails altogether instead.
	Errors(device Device) (int64, error)
	// Warnings returns how often the kernel warned of the file system mounted
	// from the device and went on with it: the warnings of ext4 since it was
	// mounted, such as of data that could not be written; of btrfs the reads,
	// writes and flushes that failed and the checksums that were wrong, since the
	// file system was made. Zero for xfs, which counts nothing.
	Warnings(device Device) (int64, error)
	// InUse reports whether the kernel has the file system on the device mounted,
	// in whatever mount namespace. It touches neither of them.
	InUse(device Device) (bool, error)
	// Holders returns the mounts of the device in other mount namespaces that stay
	// when the one at the path leaving is unmounted; all there are, if leaving is
	// empty. ErrHostUnseen: the processes of the host are not seen.
	Holders(device Device, leaving string) ([]Holder, error)
	// Mapped returns the name and the UUID by which device-mapper knows a device;
	// both are empty when the device is not one of its own, or is gone.
	Mapped(device Device) (name, uuid string, err error)
	// NodeSize returns the size in bytes of the device that a node stands for.
	NodeSize(path string) (int64, error)
}
