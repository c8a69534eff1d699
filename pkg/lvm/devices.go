package lvm

import (
	"context"
	"strings"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// Devices creates and grows volume groups. Host implements it with the real LVM, lvmfake.Groups
// in memory. The rules of Groups hold.
type Devices interface {
	// BlockDevices lists the machine's block devices and marks those whose contents are a
	// user's. The methods below do not read those and fail with ErrUserData.
	BlockDevices() ([]blockdev.Device, error)

	// Label reads a device's physical volume label, without a command. It returns ErrNotFound
	// if the device is no physical volume.
	Label(device string) (ondisk.Label, error)

	// Examine looks for contents of any kind on a device. It returns ErrClaimed if the device
	// is mounted, mapped or otherwise in exclusive use.
	Examine(ctx context.Context, device string) (Contents, error)

	// InitDevice makes a device a physical volume outside any group. It fails at a signature
	// unless o.Overwrite.
	InitDevice(ctx context.Context, o InitOptions) error

	// CreateGroup creates a volume group of physical volumes outside any group. It returns
	// ErrExists if any known disk has a group of that name.
	CreateGroup(ctx context.Context, o GroupOptions) error

	// ExtendGroup adds physical volumes outside any group. It raises the group's sequence
	// number.
	ExtendGroup(ctx context.Context, group string, devices []string) error

	// ResizeDevice makes the growth of a device available to its group.
	ResizeDevice(ctx context.Context, group, device string) error

	AttachFile(path string, size int64) (device string, err error)
}

// Contents describes what Examine found on a device.
type Contents struct {
	// Signatures are the kinds, in blkid's words, such as "ext4" or "gpt".
	Signatures  []string
	Partitioned bool
	// Unknown means data, but no signature, in the first 4096 bytes.
	Unknown bool
	// Label is nil unless it is a physical volume.
	Label *ondisk.Label
}

// Empty reports whether Examine found nothing.
func (c *Contents) Empty() bool { return len(c.Signatures) == 0 && !c.Unknown && c.Label == nil }

// String names the contents.
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

// InitOptions says how to initialise a physical volume.
type InitOptions struct {
	Device string
	// UUID is in LVM's format, see ondisk.NewUUID.
	UUID string
	// MetadataSize is the least size, in bytes.
	MetadataSize int64
	// DataAlignment is in bytes; the first extent's offset is a multiple of it.
	DataAlignment int64
	Overwrite     bool
}

// GroupOptions says how to create a volume group.
type GroupOptions struct {
	Group   string
	Devices []string
	// ExtentSize is in bytes, a power of two.
	ExtentSize int64
}

// MetadataSize returns the size of the metadata area for a device of that many bytes: 1/256 of
// it, at least 1 MiB and at most 64 MiB, which is enough for tens of thousands of volumes.
func MetadataSize(device int64) int64 {
	const most, least = 64 << 20, 1 << 20
	return max(least, min(most, device/256>>20<<20))
}
