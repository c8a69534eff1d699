package filesystem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/carve-csi/carve/pkg/quantity"
)

// Type is a file system's name in mount(2) and StorageClass parameters.
type Type string

// The supported file systems.
const (
	Ext4  Type = "ext4"
	XFS   Type = "xfs"
	Btrfs Type = "btrfs"
)

// Default is the type of a volume created without one.
const Default = Ext4

// ErrUnformatted means that a device has no known file system, or that its mkfs
// did not finish.
var ErrUnformatted = errors.New("no known file system on the device")

// ErrCorrupt means that the automatic repair left damage. An administrator must
// run the repair tool by hand.
var ErrCorrupt = errors.New("file system damage needs manual repair")

// ErrMemory means that checking a file system needs more memory than allowed.
// The file system is unchanged, or all changes are consistent.
var ErrMemory = errors.New("checking the file system takes more memory than is allowed for it")

// FormatOptions configure Format.
type FormatOptions struct {
	Type Type
	// UUID is the file system's UUID in 8-4-4-4-12 form. It is required, as the
	// caller identifies the file system by it later.
	UUID string
	// DAX aligns the file system so that mappings can use 2 MiB pages, and
	// omits features that DAX mounts cannot have. The device must start at a
	// multiple of 2 MiB of the medium.
	DAX      bool
	Profile  Profile
	Settings Settings
}

// CheckOptions limit a check.
type CheckOptions struct {
	// Memory limits the check's data, in bytes; zero means no limit.
	Memory int64
	// Waiting, if not nil, is called with true when the tool has been idle for
	// a while, for instance because its device does not answer, and with false
	// when it continues. It is not called after Check returns.
	Waiting func(bool)
}

// Info is the content of a superblock.
type Info struct {
	Type Type
	// UUID is in lower case, 8-4-4-4-12 form.
	UUID string
	// SizeBytes is the file system's size. It may be smaller than its device,
	// as it has whole blocks and does not grow with the device.
	SizeBytes int64
	// NeedsCheck asks for Check before the next mount. For ext4 it means a
	// journal to replay, no journal and no clean unmount, recorded errors, or a
	// wrong superblock checksum; for btrfs only the last; for xfs only a mark
	// that it needs repair. Mounts of btrfs and xfs replay the log. A mounted
	// ext4 looks as if it needed a check.
	NeedsCheck bool
	// Journal means that ext4 has a journal. Older scratch file systems, from
	// before fast commits, have none.
	Journal bool
}

// kind is the code specific to one file system type.
type kind interface {
	// mkfs returns the format command; size is the device's in bytes.
	mkfs(device string, size int64, o FormatOptions) []string
	// probe parses the start of a device: superblockArea bytes, or all of a
	// smaller one. It returns false for other file systems.
	probe(start []byte) (Info, bool)
	// check repairs as far as is safe without asking.
	check(ctx context.Context, device string, o CheckOptions) error
	grow(ctx context.Context, device, mountPath string) error
	// minimumSize returns the smallest device, in bytes, on which mkfs creates
	// a file system with all features, such as a journal.
	minimumSize(dax bool) int64
}

var kinds = map[Type]kind{Btrfs: btrfs{}, Ext4: ext4{}, XFS: xfs{}}

// Types returns all types, sorted.
func Types() []Type {
	return []Type{Btrfs, Ext4, XFS}
}

// ParseType returns the type with that name, or Default if it is empty. Its
// error lists the allowed names.
func ParseType(name string) (Type, error) {
	if name == "" {
		return Default, nil
	}
	if t := Type(name); slices.Contains(Types(), t) {
		return t, nil
	}
	allowed := make([]string, 0, len(kinds))
	for _, t := range Types() {
		allowed = append(allowed, string(t))
	}
	return "", fmt.Errorf("file system %q is not supported: allowed are %s", name, strings.Join(allowed, ", "))
}

// Format creates an empty file system, whatever the device contained. The
// kernel initializes inode tables and journal after the first mount. Format
// does not discard: the device is expected to be clean. mkfs refuses a mounted
// device.
//
// The context should have a deadline. When it ends, mkfs is killed and the
// device is left unformatted or half formatted. If mkfs still waits for a
// device that does not answer, all probes and commands on the device fail with
// blockdev.ErrTimedOut until mkfs exits.
func Format(ctx context.Context, device string, o FormatOptions) error {
	k, err := kindOf(o.Type)
	if err != nil {
		return err
	}
	if err := validateUUID(o.UUID); err != nil {
		return err
	}
	use := Use{Type: o.Type, DAX: o.DAX, Profile: o.Profile}
	if err := use.Check(); err != nil {
		return err
	}
	if _, err := ParseSettings(use, o.Settings.Map()); err != nil {
		return err
	}
	size, err := deviceSize(device)
	if err != nil {
		return fmt.Errorf("format: %w", err)
	}
	if least := k.minimumSize(o.DAX); size < least {
		return fmt.Errorf("format %s as %s: the device has %s, at least %s are needed", device, o.Type, quantity.Bytes(size), quantity.Bytes(least))
	}
	if err := run(ctx, device, k.mkfs(device, size, o)); err != nil {
		return fmt.Errorf("format %s as %s: %w", device, o.Type, err)
	}
	if SharesNoUUID(o.Type) {
		return SetUUID(device, o.Type, o.UUID)
	}
	return nil
}

// SharesNoUUID reports whether the kernel never mounts two file systems of the
// type with the same UUID. A clone then needs SetUUID before its first mount.
func SharesNoUUID(t Type) bool { return t == Btrfs }

// SetUUID changes the UUID of an unmounted file system of a type for which
// SharesNoUUID is true. Its duration does not depend on the content, and it may
// be repeated.
func SetUUID(device string, t Type, uuid string) error {
	k, ok := kinds[t].(interface {
		setUUID(device string, uuid [16]byte) error
	})
	if !ok {
		return fmt.Errorf("set the UUID of %s on %s: it is not needed for that type", t, device)
	}
	to, err := parseUUID(uuid)
	if err != nil {
		return err
	}
	if _, err := do(device, func() (struct{}, error) { return struct{}{}, k.setUUID(device, to) }); err != nil {
		return fmt.Errorf("set the UUID of %s on %s: %w", t, device, err)
	}
	return nil
}

// Check repairs an unmounted file system as far as is safe without asking: it
// replays the journal and corrects what fsck's preen mode does. It returns
// ErrCorrupt if damage is left, and ErrMemory if the tool needs more memory
// than allowed. Call it if Info.NeedsCheck is set; for a clean file system it
// only costs a fork.
func Check(ctx context.Context, device string, t Type, o CheckOptions) error {
	k, err := kindOf(t)
	if err != nil {
		return err
	}
	if err := k.check(ctx, device, o); err != nil {
		return fmt.Errorf("check %s on %s: %w", t, device, err)
	}
	return nil
}

// Grow extends a file system, mounted read-write at mountPath, to the size of
// its device, if it is smaller.
func Grow(ctx context.Context, device, mountPath string, t Type) error {
	k, err := kindOf(t)
	if err != nil {
		return err
	}
	if err := k.grow(ctx, device, mountPath); err != nil {
		return fmt.Errorf("grow %s on %s: %w", t, device, err)
	}
	return nil
}

// MinimumSize returns the smallest device that Format accepts, in bytes, or
// zero for an unknown type.
func MinimumSize(t Type, dax bool) int64 {
	k, ok := kinds[t]
	if !ok {
		return 0
	}
	return k.minimumSize(dax)
}

func kindOf(t Type) (kind, error) {
	if k, ok := kinds[t]; ok {
		return k, nil
	}
	_, err := ParseType(string(t))
	if err == nil {
		err = errors.New("file system type is required")
	}
	return nil, err
}
