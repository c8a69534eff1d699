package luks

import "context"

// Interface is the node plugin's interface to LUKS. Cryptsetup implements it,
// and the fake in package luksfake. Methods may be called concurrently, but not
// for the same volume. Devices are paths of device nodes. Contexts should have
// deadlines; methods without a context fail with blockdev.ErrTimedOut if the
// device does not answer.
type Interface interface {
	// Inspect returns the state of the volume on a device, without writing. It
	// returns ErrForeign or ErrDamaged, wrapped, if the volume has none of the
	// states.
	Inspect(device, volume string) (State, error)
	// Format writes a new header for a volume, whatever the device contains.
	// The state is then Making until Finish.
	Format(ctx context.Context, device, volume string, key []byte) error
	// Finish marks the volume as Made, durably: it may now hold data.
	Finish(ctx context.Context, device, volume string) error
	// Test checks that a key opens the volume, or returns ErrWrongKey.
	Test(ctx context.Context, device, volume string, key []byte) error
	// Open creates the volume's mapping. It returns ErrWrongKey for a wrong
	// key, and ErrInUse if the mapping exists.
	Open(ctx context.Context, device, volume string, key []byte, discards bool) error
	// Verify checks that the volume's mapping is as Format requests: one
	// segment of the device behind the header, with the right cipher and key
	// size. Otherwise it returns ErrForeign, wrapped: anyone with access to the
	// disk can write a header that lets plain text through. It does not compare
	// sizes.
	Verify(device, volume string) error
	// Resize grows the mapping to its device's size, even while in use. It
	// needs no key.
	Resize(ctx context.Context, volume string) error
	// Close removes the mapping. It returns ErrInUse while it is open.
	Close(ctx context.Context, volume string) error
	// Clear durably overwrites both ends of a mapping, given by its device
	// node, so that no signature remains.
	Clear(device string) error
	// Mapping returns a volume's mapping, or false if there is none. Its cost
	// is independent of their number, and it reads no disk.
	Mapping(volume string) (Mapping, bool, error)
	// Mappings returns the volumes with mappings, in any order.
	Mappings() ([]string, error)
}

// Mapping is a device-mapper device with a volume's plain text.
type Mapping struct {
	Major, Minor uint32
	// Whole is false for the remains of an interrupted Open, which can only be
	// closed.
	Whole bool
}

// Path returns the device node of a volume's mapping.
func Path(volume string) string { return "/dev/mapper/" + MappingPrefix + volume }
