package luks

import "context"

// Interface is what the node plugin asks of LUKS: of cryptsetup and the kernel, or
// of the fake in package luksfake. All methods may be called concurrently, but
// not for the same volume. Devices are paths of device nodes; contexts should
// have deadlines. What has none fails with blockdev.ErrTimedOut when the device does not answer.
type Interface interface {
	// Inspect reads the state of the volume on a device. It reads only.
	// ErrForeign and ErrDamaged, wrapped, say that it is none of the three.
	Inspect(device, volume string) (State, error)
	// Format makes a new header for a volume on a device, whatever lies there.
	// Its state is Making then, and stays so until Finish.
	Format(ctx context.Context, device, volume string, key []byte) error
	// Finish notes in the header that the volume may hold data from
	// now on. It is durable when it returns.
	Finish(ctx context.Context, device, volume string) error
	// Test checks whether a key opens the volume on a device. ErrWrongKey when not.
	Test(ctx context.Context, device, volume string, key []byte) error
	// Open makes the volume's mapping. ErrWrongKey when the key is another one,
	// ErrInUse when there is a mapping already.
	Open(ctx context.Context, device, volume string, key []byte, discards bool) error
	// Verify checks that the volume's mapping is what Format asks for: one segment of the
	// device, behind the header, with its cipher and a key of its size. ErrForeign,
	// wrapped, when it is another: who has the disk can write a header that lets
	// plain text through. The sizes are not compared.
	Verify(device, volume string) error
	// Resize gives the mapping the size that the device below has now, also while
	// it is in use. It needs no key.
	Resize(ctx context.Context, volume string) error
	// Close removes the mapping. ErrInUse while it is open.
	Close(ctx context.Context, volume string) error
	// Clear overwrites both ends of a mapping, given by its device node, so that
	// no signature is found there. It is durable when it returns.
	Clear(device string) error
	// Mapping returns the mapping of a volume. False: it has none. It costs the
	// same however many there are, and reads no disk.
	Mapping(volume string) (Mapping, bool, error)
	// Mappings returns the volumes that have mappings, in any order.
	Mappings() ([]string, error)
}

// Mapping is a device-mapper device that shows a volume's plain text.
type Mapping struct {
	// Major and Minor are its device's numbers.
	Major, Minor uint32
	// Whole is false for what was left of the making of a mapping that was
	// interrupted. It can only be closed.
	Whole bool
}

// Path is where the node of a volume's mapping is.
func Path(volume string) string { return "/dev/mapper/" + MappingPrefix + volume }
