package luks

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sync/semaphore"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/command"
)

// MappingPrefix precedes the volume's name in device-mapper names of mappings.
const MappingPrefix = "carve.luks."

// UUIDPrefix starts the device-mapper UUIDs that cryptsetup gives to mappings.
const UUIDPrefix = "CRYPT-LUKS2-"

const (
	// MaxKey bounds keys, in bytes: far above any need, and below the limit of
	// a request to the node plugin.
	MaxKey = 64 << 10
	// derivations bounds concurrent key derivations: each takes Cost.MemoryKiB,
	// and the container's memory is limited.
	derivations = 2
	// cipher and keyBits apply to every volume, in dm-crypt's terms.
	cipher  = "aes-xts-plain64"
	keyBits = 512
	// headerSectors is in units of 512 bytes.
	headerSectors = HeaderBytes / 512
	// maxWords bounds the recorded output of cryptsetup, in bytes.
	maxWords = 2048
)

var (
	// ErrWrongKey means that the key does not open the volume. Nothing was
	// changed.
	ErrWrongKey = errors.New("the key does not open the encrypted volume")
	// ErrInUse means that a device or mapping is open.
	ErrInUse = errors.New("it is in use")
	// ErrBadKey means that the key's length is out of range. Nothing was done.
	ErrBadKey = errors.New("a key has 1 to 65536 bytes")
)

// Exit statuses of cryptsetup(8).
const (
	exitNoPermission = 2
	exitBusy         = 5
)

// Cost is argon2id's cost for the key of a new header.
type Cost struct {
	// cryptsetup's minima are 32 KiB of memory and 4 rounds over it.
	MemoryKiB, Rounds int
}

// Usual exceeds the recommended minimum (19 MiB, two rounds) and is the same
// wherever a volume is made, unlike cryptsetup's measurement on a busy machine.
// PBKDF2 would need no memory, but GPUs try it fastest.
var Usual = Cost{MemoryKiB: 32 << 10, Rounds: 4}

// Cryptsetup implements Interface with cryptsetup. Deriving a key takes a
// fraction of a second, and waits while others are running.
type Cryptsetup struct {
	binary   string
	deriving *semaphore.Weighted
	cost     Cost
}

var _ Interface = (*Cryptsetup)(nil)

// New returns a Cryptsetup that runs the given program, a name or path.
func New(binary string, cost Cost) *Cryptsetup {
	return &Cryptsetup{binary: binary, deriving: semaphore.NewWeighted(derivations), cost: cost}
}

// Inspect implements Interface.
func (c *Cryptsetup) Inspect(device, volume string) (State, error) { return Inspect(device, volume) }

// Format implements Interface.
func (c *Cryptsetup) Format(ctx context.Context, device, volume string, key []byte) error {
	if err := c.derive(ctx, device, key, "luksFormat", "--batch-mode", "--type", "luks2",
		"--label", volume, "--subsystem", subsystemMaking,
		"--cipher", cipher, "--key-size", fmt.Sprint(keyBits), "--sector-size", "512", "--hash", "sha256",
		"--luks2-metadata-size", fmt.Sprint(secondary), "--offset", fmt.Sprint(headerSectors),
		"--pbkdf", "argon2id", "--pbkdf-memory", fmt.Sprint(c.cost.MemoryKiB), "--pbkdf-parallel", "1",
		"--pbkdf-force-iterations", fmt.Sprint(c.cost.Rounds),
		"--key-file", "-", device); err != nil {
		return fmt.Errorf("make the encrypted volume %s: %w", volume, err)
	}
	return nil
}

// Finish implements Interface.
func (c *Cryptsetup) Finish(ctx context.Context, device, volume string) error {
	if err := c.run(ctx, command.Command{Device: device}, "config", "--batch-mode", "--label", volume, "--subsystem", subsystemMade, device); err != nil {
		return fmt.Errorf("finish the encrypted volume %s: %w", volume, err)
	}
	return nil
}

// Test implements Interface.
func (c *Cryptsetup) Test(ctx context.Context, device, volume string, key []byte) error {
	if err := c.derive(ctx, device, key, "open", "--batch-mode", "--type", "luks2", "--test-passphrase", "--key-file", "-", device); err != nil {
		return fmt.Errorf("try the key of the encrypted volume %s: %w", volume, err)
	}
	return nil
}

// Open implements Interface. The mapping's table contains the cipher's key, so
// that it can grow without the volume's key.
func (c *Cryptsetup) Open(ctx context.Context, device, volume string, key []byte, discards bool) error {
	args := []string{"open", "--batch-mode", "--type", "luks2", "--disable-keyring", "--key-file", "-"}
	if discards {
		args = append(args, "--allow-discards")
	}
	if err := c.derive(ctx, device, key, append(args, device, MappingPrefix+volume)...); err != nil {
		return fmt.Errorf("open the encrypted volume %s: %w", volume, err)
	}
	return nil
}

// Resize implements Interface.
func (c *Cryptsetup) Resize(ctx context.Context, volume string) error {
	if err := c.run(ctx, command.Command{Device: "/dev/mapper/" + MappingPrefix + volume}, "resize", "--batch-mode", "--disable-keyring", MappingPrefix+volume); err != nil {
		return fmt.Errorf("grow the encrypted volume %s: %w", volume, err)
	}
	return nil
}

// derive runs a command that derives a key, with at most derivations at once. A
// command that waits for its device does not count.
func (c *Cryptsetup) derive(ctx context.Context, device string, key []byte, args ...string) error {
	if len(key) == 0 || len(key) > MaxKey {
		return fmt.Errorf("%w, not %d", ErrBadKey, len(key))
	}
	place, err := command.TakePlace(ctx, c.deriving)
	if err != nil {
		return err
	}
	defer place.Release()
	return c.run(ctx, command.Command{Device: device, Input: key, Waiting: place.Waiting}, args...)
}

// run runs a command to its end. A killed command that still waits for its
// device blocks other commands on the device until it exits.
func (c *Cryptsetup) run(ctx context.Context, how command.Command, args ...string) error {
	how.Program, how.Args, how.MaxOutput = c.binary, args, maxWords
	// No udev runs here: cryptsetup must create the nodes itself.
	how.Env = []string{"PATH=" + command.Path, "LC_ALL=C", "DM_DISABLE_UDEV=1"}
	r, err := command.Run(ctx, how)
	var killed *command.KilledError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, command.ErrHangs), errors.As(err, &killed) && killed.Stuck:
		err = fmt.Errorf("%w: %w", blockdev.ErrTimedOut, err)
	case context.Cause(ctx) != nil:
		err = context.Cause(ctx)
	case r.ExitCode == exitNoPermission:
		err = ErrWrongKey
	case r.ExitCode == exitBusy:
		err = ErrInUse
	}
	if said := strings.Join(strings.Fields(string(r.Output)), " "); said != "" {
		return fmt.Errorf("cryptsetup %s: %w: %q", args[0], err, said)
	}
	return fmt.Errorf("cryptsetup %s: %w", args[0], err)
}
