package filesystem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/carve-csi/carve/pkg/quantity"
)

// Type names a file system as mount(2) and StorageClass parameters do.
type Type string

// The file systems that volumes can carry.
const (
	Ext4  Type = "ext4"
	XFS   Type = "xfs"
	Btrfs Type = "btrfs"
)

// Default is the file system of a volume whose creator named none.
const Default = Ext4

// ErrUnformatted says that a device carries no known file system, or one whose
// mkfs did not finish.
var ErrUnformatted = errors.New("no known file system on the device")

// ErrCorrupt says that a file system has damage that the automatic repair did
// not dare to correct. An administrator has to run the repair tool by hand.
var ErrCorrupt = errors.New("file system damage needs manual repair")

// ErrMemory says that a file system is too large to be checked within the memory that is
// allowed for it. Nothing was changed, or all that was changed is whole.
var ErrMemory = errors.New("checking the file system takes more memory than is allowed for it")

// FormatOptions says what Format makes.
type FormatOptions struct {
	// Type is required.
	Type Type
	// UUID becomes the file system's UUID, in the usual 8-4-4-4-12 form.
	// Required: the caller recognises the file system by it later.
	UUID string
	// DAX lays the file system out so that mappings of its files can use 2 MiB
	// pages, and leaves out what DAX mounts cannot have. The device has to
	// start at a multiple of 2 MiB of the medium for that to work.
	DAX bool
	// Profile says what the data are worth.
	Profile Profile
	// Settings are the class' choices.
	Settings Settings
}

// CheckOptions say what a check may take.
type CheckOptions struct {
	// Memory is how many bytes it may have for its data; zero is no limit.
	Memory int64
	// Waiting, if set, is called with true when the tool has done nothing for a while, as while
	// its device does not answer, and with false when it goes on. It is not called after Check.
	Waiting func(bool)
}

// Info is what the superblock of a file system says.
type Info struct {
	Type Type
	// UUID in lower case, 8-4-4-4-12.
	UUID string
	// SizeBytes is the size of the file system, which can be smaller than its
	// device: whole blocks only, or the device has grown since.
	SizeBytes int64
	// NeedsCheck asks for Check before the next mount: ext4 with a journal to
	// replay, without a journal and not unmounted cleanly, with recorded errors
	// or with a superblock whose checksum is wrong; btrfs only in the last case
	// and xfs only when it is marked as in need of repair, as their logs are
	// replayed by the mount. A mounted ext4 looks as if it needed a check.
	NeedsCheck bool
	// Journal: ext4 has one. Those that were made for scratch before fast commits were used
	// for them have none.
	Journal bool
}

// kind is what is particular to one file system.
type kind interface {
	// mkfs returns the command that formats the device of that size in bytes.
	mkfs(device string, size int64, o FormatOptions) []string
	// probe reads the start of a device, superblockArea bytes or fewer if the
	// device is smaller. False: not this file system.
	probe(start []byte) (Info, bool)
	// check repairs what can be repaired without asking.
	check(ctx context.Context, device string, o CheckOptions) error
	// grow grows the file system that is mounted at a path.
	grow(ctx context.Context, device, mountPath string) error
	// minimumSize is the smallest device, in bytes, that mkfs accepts and that
	// has all features, such as a journal.
	minimumSize(dax bool) int64
}

var kinds = map[Type]kind{Btrfs: btrfs{}, Ext4: ext4{}, XFS: xfs{}}

// Types returns all known types in alphabetical order.
func Types() []Type {
	return []Type{Btrfs, Ext4, XFS}
}

// ParseType returns the type of that name; an empty name is Default. The error
// lists what is allowed.
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

// Format makes a new, empty file system on the device, whatever the device
// carried before. It returns when the file system can be mounted; inode tables
// and the journal are initialised lazily by the kernel after the first mount.
// No discard pass is made: the device is expected to be clean already.
// A device that is mounted is refused by mkfs. The context should carry a
// deadline: at its end mkfs is killed and the device is left unformatted or
// half formatted. One that waits for a device that does not answer is not gone then: until it is,
// the device is neither probed nor worked on again, and errors match blockdev.ErrTimedOut.
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

// SharesNoUUID reports whether the kernel refuses to mount two file systems of
// the type that have the same UUID, whatever the mount options. A clone has to
// get its own by SetUUID before it is mounted.
func SharesNoUUID(t Type) bool { return t == Btrfs }

// SetUUID gives the unmounted file system another UUID, for types that share
// none. It is quick whatever the file system holds, and may be repeated.
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

// Check repairs the unmounted file system as far as that is safe to do without
// asking: journal replay and what fsck's preen mode corrects. It returns
// ErrCorrupt when damage is left, and ErrMemory when the tool would take more memory than
// it may have. Probe's NeedsCheck says when to call it; calling it
// for a clean file system costs a fork and changes nothing.
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

// Grow extends the file system, mounted read-write at mountPath, to the size
// of its device. It succeeds and changes nothing when there is nothing to grow.
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

// MinimumSize returns the size in bytes of the smallest device that Format
// accepts, or zero for an unknown type.
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
