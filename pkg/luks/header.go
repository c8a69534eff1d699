package luks

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/carve-csi/carve/pkg/filesystem"
)

// HeaderBytes is the size of the header; a volume can hold the rest of the
// device.
const HeaderBytes = 16 << 20

// State is the progress of making a volume.
type State int

// States.
const (
	// Blank: it has neither a header nor a known signature.
	Blank State = iota
	// Making: it has a complete or partial header, and no Pod has had it. It
	// will be made from scratch.
	Making
	// Made: the volume may hold data and is never made again.
	Made
)

// String returns a word for logs.
func (s State) String() string { return [...]string{"blank", "making", "made"}[s] }

var (
	// ErrForeign means that the device has the header of another volume, a
	// header not made here, or a file system.
	ErrForeign = errors.New("it carries what is not its own")
	// ErrDamaged means that there is data where the header should be, but no
	// part can be trusted.
	ErrDamaged = errors.New("the header of the encrypted volume is damaged")
)

// Subsystems, a LUKS2 field for the program that made a header, record the
// states.
const (
	subsystemMaking = "carve.making"
	subsystemMade   = "carve.made"
)

// The binary header of LUKS2 (on-disk format specification 1.1.2, 2.1),
// big-endian: magic, version, size including the JSON area, sequence number,
// label, checksum algorithm, salt, UUID, subsystem, offset, padding, checksum.
const (
	binaryBytes     = 4096
	atVersion       = 6
	atSize          = 8
	atSequence      = 16
	atLabel         = 24
	atAlgorithm     = 72
	atSubsystem     = 208
	atOffset        = 256
	atChecksum      = 448
	checksumBytes   = 64
	labelBytes      = 48
	algorithmBytes  = 32
	maxHeaderBytes  = 4 << 20
	primaryMagic    = "LUKS\xba\xbe"
	secondaryMagic  = "SKUL\xba\xbe"
	checksumByWhich = "sha256"
)

// secondary is the offset of the second copy in headers made here, right behind
// the first. The key slots follow, which cryptsetup fills with noise before it
// writes either copy. secondaries are the possible offsets in other headers.
const secondary = 0x4000

var secondaries = []int64{0x4000, 0x8000, 0x10000, 0x20000, 0x40000, 0x80000, 0x100000, 0x200000, 0x400000}

// Inspect returns the state of the volume on a device. It writes nothing and
// forks nothing. It returns ErrForeign or ErrDamaged, wrapped, if the volume
// has none of the states, and blockdev.ErrTimedOut while the device does not
// answer. Other errors are the operating system's.
func Inspect(device, volume string) (State, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	return inspectWithin(ctx, device, volume)
}

// answerTimeout bounds this process's own reads and writes.
const answerTimeout = time.Minute

func inspectWithin(ctx context.Context, device, volume string) (State, error) {
	state, err := filesystem.Do(ctx, device, func() (State, error) {
		f, err := os.Open(device)
		if err != nil {
			return Blank, err
		}
		defer f.Close()
		return inspect(f, volume)
	})
	if err != nil {
		return Blank, fmt.Errorf("inspect %s: %w", device, err)
	}
	return state, nil
}

func inspect(r io.ReaderAt, volume string) (State, error) {
	first, err := readCopy(r, 0, primaryMagic)
	if err != nil {
		return Blank, err
	}
	best, empty := first, false
	for _, at := range secondaries {
		second, err := readCopy(r, at, secondaryMagic)
		switch {
		case err != nil:
			return Blank, err
		case second.valid && (!best.valid || second.sequence > best.sequence):
			best = second
		}
		if at == secondary {
			empty = second.empty
		}
	}
	switch {
	case !best.valid && first.empty && empty:
		return blank(r)
	case !best.valid && first.begun && empty:
		// A header that was ever complete has two copies.
		return Making, nil
	case !best.valid:
		return Blank, ErrDamaged
	case best.label != volume:
		return Blank, fmt.Errorf("%w: its label is %.48q", ErrForeign, best.label)
	case best.subsystem == subsystemMaking:
		return Making, nil
	case best.subsystem == subsystemMade:
		return Made, nil
	}
	return Blank, fmt.Errorf("%w: its subsystem is %.48q", ErrForeign, best.subsystem)
}

// blank checks that a device without a header may get one. Key slots may have
// noise from an interrupted run.
func blank(r io.ReaderAt) (State, error) {
	carries, err := filesystem.BehindZeroes(r)
	if err == nil && carries != "" {
		err = fmt.Errorf("%w: it is %s", ErrForeign, carries)
	}
	return Blank, err
}

type headerCopy struct {
	// empty means only zeroes; begun, the start of a version 2 header; valid, a
	// correct checksum. The other fields are set only if valid.
	empty, begun, valid bool
	sequence            uint64
	label, subsystem    string
}

// readCopy reads the copy at an offset. It returns ErrForeign for a LUKS1
// header.
func readCopy(r io.ReaderAt, at int64, magic string) (headerCopy, error) {
	b := make([]byte, binaryBytes)
	if _, err := r.ReadAt(b, at); err != nil {
		return headerCopy{}, err
	}
	if !bytes.HasPrefix(b, []byte(magic)) {
		return headerCopy{empty: len(bytes.Trim(b, "\x00")) == 0}, nil
	}
	if v := binary.BigEndian.Uint16(b[atVersion:]); v != 2 {
		return headerCopy{}, fmt.Errorf("%w: a LUKS header of version %d", ErrForeign, v)
	}
	c := headerCopy{begun: true}
	size := binary.BigEndian.Uint64(b[atSize:])
	if size < binaryBytes || size > maxHeaderBytes || binary.BigEndian.Uint64(b[atOffset:]) != uint64(at) ||
		text(b[atAlgorithm:], algorithmBytes) != checksumByWhich {
		return c, nil
	}
	whole := make([]byte, size)
	if _, err := r.ReadAt(whole, at); err != nil {
		return headerCopy{}, err
	}
	want := bytes.Clone(whole[atChecksum : atChecksum+sha256.Size])
	clear(whole[atChecksum : atChecksum+checksumBytes])
	if sum := sha256.Sum256(whole); !bytes.Equal(sum[:], want) {
		return c, nil
	}
	c.valid = true
	c.sequence = binary.BigEndian.Uint64(b[atSequence:])
	c.label, c.subsystem = text(b[atLabel:], labelBytes), text(b[atSubsystem:], labelBytes)
	return c, nil
}

func text(b []byte, length int) string {
	s, _, _ := bytes.Cut(b[:length], []byte{0})
	return string(s)
}
