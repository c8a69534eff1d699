// Package mount is the node plugin's interface to the kernel's mount table. It
// mounts file systems, binds mounts and device nodes, unmounts them and reports
// their state.
//
// It only makes system calls: it has no retries, no locks and no policy on
// paths or options, and never forks.
//
// Vocabulary: a layer is one mount at a path. Several layers may share a path;
// only the topmost is visible. A device is a pair of numbers; device nodes only
// lead to them. A path is identified by the device that it shows: of the
// mounted file system, or of the bound node.
//
// Invariants: a mount appears complete, with all its options, or not at all.
// Unmount removes every layer, even of a dead device. Mount paths with a
// symbolic link are rejected.
//
// The kubelet, and the tests with real mounts, use k8s.io/mount-utils. This
// package does not: its Mount, Unmount and New fork; SafeFormatAndMount formats
// whatever blkid does not recognize; ResizeFs cannot be cancelled; IsMountPoint
// and IsLikelyNotMountPoint follow links and do not return the device;
// ParseMountInfo fails on the whole table for one mount without a source,
// unlike github.com/moby/sys/mountinfo; FakeMounter has no devices, layers or
// propagation.
//
// pkg/driver is the caller. Package mountfake has a fake, mounttest the suite
// that both implementations pass.
package mount

import "fmt"

// Device identifies a block device by its numbers.
type Device struct {
	Major, Minor uint32
}

// String returns "major:minor", as in sysfs.
func (d Device) String() string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

// Source is a device with a file system.
type Source struct {
	// Node is the path of a device node; it may be a link.
	Node string
	// Device is the expected device, or zero for whatever Node stands for.
	Device Device
}

// State describes a path.
type State struct {
	// Mounted is false if the path is missing or not the root of a mount. The
	// other fields are then zero.
	Mounted bool
	// Device is the block device of the topmost layer: of its file system, or
	// of the bound device node.
	Device Device
	// Node means that a device node is bound to the path.
	Node bool
	// ReadOnly means that the topmost layer or its file system is read-only.
	ReadOnly bool
}

// Point is one layer in the mount table.
type Point struct {
	Path string
	// Device is the file system's. For a bound device node that is the file
	// system that contains it; At returns the node's own device.
	Device Device
	// Root is the mounted path within the file system: "/" unless a directory
	// or file is bound.
	Root string
	// FSType is for example "ext4" or "devtmpfs".
	FSType string
	// Options are the layer's, such as "ro" and "noatime". FSOptions are shared
	// by all layers of the file system, such as "ro" and "dax=always".
	Options, FSOptions []string
}

// Usage is a file system's usage.
type Usage struct {
	// AvailableBytes is the space for unprivileged users, perhaps less than the
	// unused space.
	TotalBytes, AvailableBytes, UsedBytes int64
	// A file system that creates inodes as needed reports its maximum.
	TotalInodes, FreeInodes, UsedInodes int64
}

// Interface is the part of the kernel that the node service uses. Methods may
// be called concurrently, but callers serialize calls that change one path.
// Errors wrap the errno.
type Interface interface {
	// Mount mounts a device's file system at a directory. options are checked
	// mount(8) options of the layer and the file system, one each; later ones
	// win. Before the mount becomes visible, Mount verifies the device, type
	// and layer attributes, or returns ErrUnverified. If the kernel refuses,
	// the error is a *KernelError. EBUSY means that the path already shows the
	// file system.
	Mount(source Source, path, fsType string, options []string) error
	// Bind binds the mount or device node at source to the existing directory
	// or file at path.
	Bind(source, path string, readOnly bool) error
	// Unmount removes all layers at path. It succeeds if there is none or path
	// does not exist. EBUSY means that the topmost layer is in use.
	Unmount(path string) error
	// UnmountBelow unmounts others' mounts below the mount at path, deepest
	// first, and returns them. It leaves a mount, with a *BelowError, that is
	// in use, that is also visible below a path in users, where the volume is
	// in use, or whose unmount would propagate beyond copies of the mount at
	// path.
	UnmountBelow(path string, users []string) ([]Point, error)
	// Thaw thaws the file system at path (fsfreeze(8)) and reports whether it
	// was frozen. It can block as long as the device does.
	Thaw(path string) (bool, error)
	// At returns the state of one path, at a cost independent of the number of
	// mounts. On a dead file system it may fail with EIO.
	At(path string) (State, error)
	// Below returns all layers strictly below dir, sorted by path. It reads the
	// whole mount table and touches no file system.
	Below(dir string) ([]Point, error)
	// Node returns the device of a device node. ENOTBLK means that path is
	// something else.
	Node(path string) (Device, error)
	Usage(path string) (Usage, error)
	// Errors returns the kernel's count of errors in the ext4 mounted from the
	// device, since its last repair. Above zero the file system rejects writes,
	// unless its options say otherwise; newer kernels show that nowhere else.
	// It returns zero for other types: xfs shuts down instead.
	Errors(device Device) (int64, error)
	// Warnings returns how often the kernel warned about the file system and
	// went on. For ext4 it counts warnings since the mount, such as lost data;
	// for btrfs failed reads, writes and flushes and wrong checksums since it
	// was made. xfs has no counters: zero.
	Warnings(device Device) (int64, error)
	// InUse reports whether the kernel has the device's file system mounted, in
	// any mount namespace. It touches neither of them.
	InUse(device Device) (bool, error)
	// Holders returns the device's mounts in other mount namespaces that
	// survive an unmount of leaving, or all if leaving is empty. ErrHostUnseen
	// means that the host's processes are not visible.
	Holders(device Device, leaving string) ([]Holder, error)
	// Mapped returns device-mapper's name and UUID of a device, empty if it is
	// gone or not device-mapper's.
	Mapped(device Device) (name, uuid string, err error)
	// NodeSize returns the size in bytes of a node's device.
	NodeSize(path string) (int64, error)
}
