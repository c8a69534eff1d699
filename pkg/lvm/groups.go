package lvm

import (
	"context"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// Groups is the interface to LVM. Host implements it with the real LVM, lvmfake.Groups in
// memory.
//
// Callers must not change the same volume group concurrently: LVM would serialise them anyway,
// with a process each. Everything else is safe for concurrent use.
//
// When a context ends, an implementation kills the running command. The change may have taken
// effect all the same, and the caller must Scan to find out. Errors match the sentinels of this
// package with errors.Is.
//
// Methods without a context run no command. Those below that take a volume return ErrNotFound if it
// is inactive.
type Groups interface {
	Thin
	Crypt
	Adoption

	// Scan reads the named volume groups. It omits groups that do not exist, without an error.
	Scan(ctx context.Context, groups []string) ([]Group, error)

	// Pin makes Scan accept only the group with this identity: any disk may hold a group of any
	// name and UUID. Without a UUID, as initially, Scan accepts the only group of the name, and
	// none of several.
	Pin(group string, identity Identity)

	// Limit restricts Scan and BlockDevices to the block devices that accepts accepts; nil
	// means all. Call it before any other method. accepts must be safe for concurrent use.
	Limit(accepts func(*blockdev.Device) bool)

	// Others returns the groups of this name that the last Scan saw and rejected, by UUID. A
	// Scan that finds the group in its previous place sees no others. Scan also rejects the
	// group itself while one of its physical volumes is on several devices.
	Others(group string) []Other

	// Duplicated looks at all devices and returns the known groups that now have a physical
	// volume on several of them. Commands that change such a group fail with ErrNotFound until
	// a Scan finds the duplicate gone.
	Duplicated() (groups []string, err error)

	// Excluded returns the devices that the last look at all devices left out because they lie
	// on volumes, so that their contents are a user's. It does not list the volumes themselves.
	Excluded() []Excluded

	// Metadata reads the state of the group's metadata by three small reads per disk. It
	// returns ErrNotFound if no disk of the group is known or readable.
	Metadata(group string) (ondisk.Metadata, error)

	// Placement reads where the group's volumes lie from all of one disk's metadata. It fails
	// like Metadata.
	Placement(group string) (ondisk.Placement, error)

	// RAIDStatus asks the kernel for the state of a RAID volume's images.
	RAIDStatus(group, volume string) (RAIDStatus, error)

	// Activate gives volumes of a group, thin pools included, devices and correct device nodes.
	// It changes neither active volumes nor others in the group, except those below the given
	// ones. It goes on after a failure, and returns all errors.
	Activate(ctx context.Context, group string, volumes []string) error

	// Create creates an active volume. It raises the group's sequence number by exactly
	// Layout.Commits. It does not clear the extents.
	Create(ctx context.Context, o CreateOptions) error

	// Extend grows a volume, active or not, to extents in all, in the layout of its last
	// segment: a multiple of that layout's unit. It raises the group's sequence number by
	// exactly one. on places the new extents, like CreateOptions.On.
	Extend(ctx context.Context, group, volume string, extents int64, on ...layout.Share) error

	// ExtendAt is Extend if the group has the sequence number seqno, and otherwise returns
	// ErrChanged. No other program can change the group between check and change.
	ExtendAt(ctx context.Context, seqno uint64, group, volume string, extents int64, on ...layout.Share) error

	// Remove removes volumes in one command. An open volume fails with ErrBusy, one with
	// dependents at that moment with ErrHasDependents; others of the same call may have been
	// removed.
	Remove(ctx context.Context, group string, volumes []string) error

	// Inconsistent lists the devices of a group that differ from the metadata, as a killed
	// command leaves them: suspended, with an inactive table, or of another length. It includes
	// components, which layout.IsOf maps to volumes, and devices that a running command is
	// changing. With an error, the list may be incomplete.
	Inconsistent(group string) ([]string, error)

	// Repair brings inconsistent devices of volumes and their components in line with the
	// metadata and leaves the others alone. It returns ErrBusy while another command changes
	// the group.
	Repair(ctx context.Context, group string, volumes []string) error

	// Device describes a volume's device. It also returns ErrNotFound if Path does not lead to
	// the device; Activate corrects that.
	Device(group, volume string) (Device, error)

	// Numbers lists the active volumes of a group, and the encrypted devices of any group, in
	// one system call. Device and CryptDevice may not find a listed one: not yet, or no longer.
	Numbers(group string) (Numbers, error)

	// Open opens a volume's device exclusively. It returns ErrClaimed if the device is mounted
	// or mapped, and ErrBusy if another process has it open.
	Open(group, volume string) (blockdev.Handle, error)

	// OpenInUse opens a volume's device even while other processes have it open.
	OpenInUse(group, volume string) (blockdev.Handle, error)

	// HasDependents asks the kernel, in one system call, whether writes to a volume change
	// another logical volume or go through one, see Dependent.
	HasDependents(group, volume string) (bool, error)

	// Mapping lists a volume's segments in order.
	Mapping(group, volume string) ([]Segment, error)
}

// CreateOptions describes a new volume.
type CreateOptions struct {
	// Group and Volume must satisfy ValidName.
	Group, Volume string
	Layout        layout.Layout
	// Extents is at least 1 and a multiple of the layout's unit.
	Extents int64
	// On is the placement, as Layout.Place chooses it. If empty, LVM chooses, and may put two
	// images on one device.
	On []layout.Share
	// Tags are attached by the same command. Each must satisfy ValidTag.
	Tags []string
	// Options are further options of lvcreate, each as --name=value.
	Options []string
}

// Device is the device-mapper device of an active volume.
type Device struct {
	// Path is the node that users open, /dev/GROUP/VOLUME.
	Path         string
	Major, Minor uint32
	// OpenCount counts mounts, mappings on top and processes.
	OpenCount int
	// Suspended is true while the kernel holds back I/O.
	Suspended bool
}

// Numbers maps the names of volumes to their devices.
type Numbers struct{ Volumes, Encrypted map[string]blockdev.Number }

// Number returns the device's number.
func (d Device) Number() blockdev.Number { return blockdev.Number{Major: d.Major, Minor: d.Minor} }
