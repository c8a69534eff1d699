package lvm

import (
	"context"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// Groups is what a daemon needs of LVM. Host implements it with the real LVM,
// lvmfake.Groups in memory.
//
// Methods that change a volume group must not run concurrently for the same
// group: LVM would make them wait for each other anyway, with a process each.
// Everything else is safe for concurrent use.
//
// A context bounds the call. A change that has been started is not abandoned
// when the context is merely cancelled late: an implementation kills the
// command at its deadline, and then the caller must Scan to learn what became
// of it. Errors match the sentinels of this package with errors.Is.
type Groups interface {
	Thin
	Crypt
	Adoption

	// Scan reads the named volume groups afresh. Groups that do not exist are
	// absent from the result, which is not an error.
	Scan(ctx context.Context, groups []string) ([]Group, error)

	// Pin has Scan take only the group of this identity for the one of the name, as any disk
	// may hold a group of any name and UUID. Without a UUID, as at first, Scan takes the only
	// group of the name, and none of several.
	Pin(group string, identity Identity)

	// Limit has Scan and BlockDevices see only the block devices that accepts accepts. A
	// nil accepts is no limit, which is what there is at first. It is called before any
	// other method. accepts is called from several goroutines at once.
	Limit(accepts func(*blockdev.Device) bool)

	// Others are the groups of this name that the last Scan saw and did not take, by UUID.
	// A Scan that finds the group where it was before sees no others. The group itself is among
	// them while one of its physical volumes is on several devices: no Scan takes it then.
	Others(group string) []Other

	// Duplicated looks at all devices, and returns the groups that were found before and of which
	// a physical volume is on several devices by now. Until a Scan finds that ended, commands that
	// change such a group fail with ErrNotFound. It runs no command.
	Duplicated() (groups []string, err error)

	// Excluded are the devices that the last look at all devices, by Scan or Duplicated, left out
	// because they lie on volumes, so that what they hold is a user's. The volumes themselves are
	// not among them.
	Excluded() []Excluded

	// Metadata reads the state of the group's metadata straight from its
	// disks. It runs no command and costs three small reads per disk.
	// ErrNotFound when no disk of the group is known or readable.
	Metadata(group string) (ondisk.Metadata, error)

	// Placement reads where everything in a group lies straight from its
	// disks. It runs no command; it reads all of the metadata of one disk.
	// ErrNotFound when no disk of the group is known or readable.
	Placement(group string) (ondisk.Placement, error)

	// RAIDStatus asks the kernel how the images of an active RAID volume do.
	// ErrNotFound when it is not active.
	RAIDStatus(group, volume string) (RAIDStatus, error)

	// Activate makes volumes of a group, thin pools among them, available as devices, with
	// right device nodes. Those that are available stay as they are, and so does everything
	// else in the group but what the volumes lie in. The error is of what failed; all
	// others were activated.
	Activate(ctx context.Context, group string, volumes []string) error

	// Create carves an active volume. It raises the group's sequence number by
	// exactly Layout.Commits. What the extents held before is left there.
	Create(ctx context.Context, o CreateOptions) error

	// Extend grows a volume, active or not, to the given number of extents in
	// all, in the layout of its last segment: a multiple of that layout's unit.
	// It raises the group's sequence number by exactly one. Where the new
	// extents lie may be said, as in CreateOptions.On.
	Extend(ctx context.Context, group, volume string, extents int64, on ...layout.Share) error

	// ExtendAt is Extend of a volume of a group that has this sequence number; ErrChanged if it
	// has another one. No other program changes the group between that look and the command's end.
	ExtendAt(ctx context.Context, seqno uint64, group, volume string, extents int64, on ...layout.Share) error

	// Remove frees the volumes of one group in one command. A volume that is
	// open fails with ErrBusy, and one that has dependents at that moment with
	// ErrHasDependents; others of the same call may have been removed.
	Remove(ctx context.Context, group string, volumes []string) error

	// Inconsistent lists the devices of a group that are not what the metadata says, as a
	// command leaves them that is killed: the kernel holds back their I/O, or has an
	// inactive table for them, or they have another length. Components of volumes are
	// included; layout.IsOf says which volume a name is of. It runs no command. While a
	// command runs, what it changes may be among them. With an error, there may be others.
	Inconsistent(group string) ([]string, error)

	// Repair makes the devices of volumes, with all their components, what the metadata
	// says. Nothing is done to those that are. ErrBusy while another command changes
	// the group.
	Repair(ctx context.Context, group string, volumes []string) error

	// Device describes a volume's device by the kernel, without a command.
	// ErrNotFound when the volume is not active, or when Path would not lead
	// to its device; Activate helps against both.
	Device(group, volume string) (Device, error)

	// Numbers lists the active volumes of a group, and the encrypted devices of
	// volumes of any group, by one question to the kernel, however many there are.
	// What it lists Device and CryptDevice may not find yet, or any more.
	Numbers(group string) (Numbers, error)

	// Open opens a volume's device for the caller alone. ErrClaimed when it is
	// mounted or mapped, ErrBusy when another process has it open. ErrNotFound when
	// it is not active.
	Open(group, volume string) (blockdev.Handle, error)

	// OpenInUse opens a volume's device also while other processes have it open.
	OpenInUse(group, volume string) (blockdev.Handle, error)

	// HasDependents asks the kernel whether what is written to an active volume changes
	// another logical volume, or goes through one, see Dependent. It costs one system
	// call. ErrNotFound when it is not active.
	HasDependents(group, volume string) (bool, error)

	// Mapping lists the segments of an active volume from its beginning, without a
	// command. ErrNotFound when it is not active.
	Mapping(group, volume string) ([]Segment, error)
}

// CreateOptions says what to carve.
type CreateOptions struct {
	// Group and Volume name what is made. Both must satisfy ValidName.
	Group, Volume string
	// Layout is how it lies on the devices.
	Layout layout.Layout
	// Extents is the size, at least 1 and a multiple of the layout's unit.
	Extents int64
	// On is where it lies, as Layout.Place chooses; empty leaves it to LVM,
	// which may then put two images on one device.
	On []layout.Share
	// Tags are attached by the same command. Each must satisfy ValidTag.
	Tags []string
	// Options are further options of lvcreate, each as --name=value.
	Options []string
}

// Device is the device-mapper device of an active volume.
type Device struct {
	// Path is the node that users open, /dev/GROUP/VOLUME.
	Path string
	// Major and Minor are the kernel's numbers.
	Major, Minor uint32
	// OpenCount counts the openers of the device: mounts, other mappings,
	// processes.
	OpenCount int
	// Suspended is true while the kernel holds back I/O.
	Suspended bool
}

// Numbers are the numbers of volumes' devices, by the volumes' names.
type Numbers struct{ Volumes, Encrypted map[string]blockdev.Number }

// Number is that of the device.
func (d Device) Number() blockdev.Number { return blockdev.Number{Major: d.Major, Minor: d.Minor} }
