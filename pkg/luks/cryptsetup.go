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

// MappingPrefix begins the device-mapper names of mappings; the volume's name is
// behind it.
const MappingPrefix = "carve.luks."

// UUIDPrefix begins the device-mapper UUIDs that cryptsetup gives to mappings.
const UUIDPrefix = "CRYPT-LUKS2-"

const (
	// MaxKey bounds keys, in bytes: far above what any key needs, and below what
	// reaches the node plugin in one request.
	MaxKey = 64 << 10
	// derivations is how many keys are tried at a time: each takes Cost.MemoryKiB
	// of memory, and the container has a limit.
	derivations = 2
	// cipher and keyBits are what every volume is encrypted with, in dm-crypt's terms.
	cipher  = "aes-xts-plain64"
	keyBits = 512
	// headerSectors is HeaderBytes in units of 512 bytes.
	headerSectors = HeaderBytes / 512
	// maxWords bounds what is kept of cryptsetup's output.
	maxWords = 2048
)

var (
	// ErrWrongKey is returned when a key does not open a volume. Nothing was
	// changed.
	ErrWrongKey = errors.New("the key does not open the encrypted volume")
	// ErrInUse is returned when a device or a mapping is open.
	ErrInUse = errors.New("it is in use")
	// ErrBadKey is returned for a key of no use, before anything is done.
	ErrBadKey = errors.New("a key has 1 to 65536 bytes")
)

// Exit statuses of cryptsetup(8).
const (
	exitNoPermission = 2
	exitBusy         = 5
)

// Cost is what argon2id takes to derive the key of a new header.
type Cost struct {
	// MemoryKiB of memory, 32 at least, and Rounds over it, 4 at least: cryptsetup
	// takes no less.
	MemoryKiB, Rounds int
}

// Usual is what volumes get: 32 MiB and four passes are above what is recommended
// as the least (19 MiB, two), and the same wherever a volume is made, unlike what
// cryptsetup would measure on a busy machine. PBKDF2 takes no memory, and is what a GPU tries
// fastest.
var Usual = Cost{MemoryKiB: 32 << 10, Rounds: 4}

// Cryptsetup runs cryptsetup. It implements Interface; a key's derivation takes a
// fraction of a second, and waits while others are under way.
type Cryptsetup struct {
	binary   string
	deriving *semaphore.Weighted
	cost     Cost
}

var _ Interface = (*Cryptsetup)(nil)

// New returns a Cryptsetup that runs the program of that name or path.
func New(binary string, cost Cost) *Cryptsetup {
	return &Cryptsetup{binary: binary, deriving: semaphore.NewWeighted(derivations), cost: cost}
}

// Inspect implements Interface by the function of that name.
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

// Open implements Interface. The cipher's key is in the mapping's table, so that
// it can grow without the volume's key.
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

// derive runs a command that derives something from a key, once few enough others are under way.
// One that waits for its device does not count.
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

// run runs one command to its end. One that is killed when the context ends and is not gone then,
// because its device does not answer, keeps other commands from the device until it is.
func (c *Cryptsetup) run(ctx context.Context, how command.Command, args ...string) error {
	how.Program, how.Args, how.MaxOutput = c.binary, args, maxWords
	// There is no udev to wait for where this runs: nodes are made at once.
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
