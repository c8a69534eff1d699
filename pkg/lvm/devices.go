package lvm

import (
	"context"
	"strings"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// Devices is what a daemon needs to make and grow volume groups. Host
// implements it with the real LVM, lvmfake.Groups in memory.
//
// The rules of Groups hold: methods that change a group do not run
// concurrently for the same group, and errors match the package's sentinels.
type Devices interface {
	// BlockDevices lists the machine's block devices, and says of which the contents are a
	// user's. Those are not read: the methods below fail with ErrUserData.
	BlockDevices() ([]blockdev.Device, error)

	// Label reads what a device says of itself as a physical volume. It runs
	// nothing. ErrNotFound when it is none.
	Label(device string) (ondisk.Label, error)

	// Examine looks for anything that is on a device. ErrClaimed when it is
	// mounted, mapped or otherwise in exclusive use.
	Examine(ctx context.Context, device string) (Contents, error)

	// InitDevice makes a device a physical volume that belongs to no group.
	// Without Overwrite, it fails rather than overwrite a signature.
	InitDevice(ctx context.Context, o InitOptions) error

	// CreateGroup makes a volume group of physical volumes that belong to none.
	// ErrExists when there is one of that name on any known disk.
	CreateGroup(ctx context.Context, o GroupOptions) error

	// ExtendGroup adds physical volumes that belong to no group. It raises the
	// group's sequence number.
	ExtendGroup(ctx context.Context, group string, devices []string) error

	// ResizeDevice makes all of a device that has grown available to its group.
	ResizeDevice(ctx context.Context, group, device string) error

	// AttachFile makes a file available as a block device, and returns its
	// path. See blockdev.AttachFile.
	AttachFile(path string, size int64) (device string, err error)
}

// Contents is what was found on a device.
type Contents struct {
	// Signatures are the kinds, in blkid's words, such as "ext4" or "gpt".
	Signatures []string
	// Partitioned is true when one of them is a partition table.
	Partitioned bool
	// Unknown is true when there is no signature, but the first 4096 bytes are
	// not empty either.
	Unknown bool
	// Label is set when it is a physical volume.
	Label *ondisk.Label
}

// Empty reports whether nothing was found.
func (c *Contents) Empty() bool { return len(c.Signatures) == 0 && !c.Unknown && c.Label == nil }

// String names what was found.
func (c *Contents) String() string {
	switch {
	case len(c.Signatures) > 0:
		return strings.Join(c.Signatures, ", ")
	case c.Label != nil:
		return "LVM2_member"
	case c.Unknown:
		return "data of an unknown kind"
	}
	return "nothing"
}

// InitOptions says how a physical volume is made.
type InitOptions struct {
	Device string
	// UUID is the physical volume's, 32 alphanumeric characters in LVM's
	// groups; see ondisk.NewUUID.
	UUID string
	// MetadataSize is what the metadata area has at least, in bytes.
	MetadataSize int64
	// DataAlignment is what the first extent's offset is a multiple of.
	DataAlignment int64
	// Overwrite allows that signatures are destroyed.
	Overwrite bool
}

// GroupOptions says how a volume group is made.
type GroupOptions struct {
	Group   string
	Devices []string
	// ExtentSize is in bytes, a power of two.
	ExtentSize int64
}

// MetadataSize is how large the metadata area of a device of so many bytes
// should be: 64 MiB, enough for tens of thousands of volumes, and less where
// that would be more than one part in 256.
func MetadataSize(device int64) int64 {
	const most, least = 64 << 20, 1 << 20
	return max(least, min(most, device/256>>20<<20))
}
