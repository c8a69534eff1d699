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

// HeaderBytes is how much of a device the header takes: what is left of it is
// what a volume can hold.
const HeaderBytes = 16 << 20

// State is how far the making of a volume got.
type State int

// States.
const (
	// Blank: it has no header yet, and no signature that is known.
	Blank State = iota
	// Making: a header was made, whole or in part, and no Pod has had the
	// volume. It is made from the beginning.
	Making
	// Made: the volume may hold data. It is never made again.
	Made
)

// String returns a word for a log.
func (s State) String() string { return [...]string{"blank", "making", "made"}[s] }

var (
	// ErrForeign is returned for a device with the header of another volume, one
	// that was not made here, or a file system.
	ErrForeign = errors.New("it carries what is not its own")
	// ErrDamaged is returned when there is something where the header should be,
	// and no part of it can be trusted.
	ErrDamaged = errors.New("the header of the encrypted volume is damaged")
)

// Subsystems of headers, by which the states are known: a field of LUKS2 for the
// use of the program that made them.
const (
	subsystemMaking = "carve.making"
	subsystemMade   = "carve.made"
)

// The binary header of LUKS2 (on-disk format specification 1.1.2, 2.1), big
// endian: magic, version, size with the JSON area behind it, sequence number,
// label, checksum's algorithm, salt, UUID, subsystem, offset, padding, checksum.
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

// secondary is where the second copy of a header lies that was made here, behind
// the first one; the rest of the header are key slots, which cryptsetup fills
// with noise before it writes either copy. The other secondaries are where those
// of other headers can be.
const secondary = 0x4000

var secondaries = []int64{0x4000, 0x8000, 0x10000, 0x20000, 0x40000, 0x80000, 0x100000, 0x200000, 0x400000}

// Inspect reads the state of the volume on a device. It reads only, and forks
// nothing. ErrForeign and ErrDamaged, wrapped, say that it is none of the three;
// other errors are the operating system's. While the device does not answer, it fails with
// blockdev.ErrTimedOut.
func Inspect(device, volume string) (State, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	return inspectWithin(ctx, device, volume)
}

// answerTimeout bounds what is read and written by this process itself.
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
		// Of a header that was completed once, there are two copies.
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

// blank reports whether a device without a header may get one. What there is of key
// slots is noise, which an interrupted making left.
func blank(r io.ReaderAt) (State, error) {
	carries, err := filesystem.BehindZeroes(r)
	if err == nil && carries != "" {
		err = fmt.Errorf("%w: it is %s", ErrForeign, carries)
	}
	return Blank, err
}

// headerCopy is what is found where a copy of the header may be.
type headerCopy struct {
	// empty: nothing but zeroes. begun: it starts as one of version 2. valid: it
	// is one, by its checksum; the rest is set then.
	empty, begun, valid bool
	sequence            uint64
	label, subsystem    string
}

// readCopy reads the copy at an offset. A LUKS1 header is ErrForeign.
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

// text is a string in a field that zeroes fill up.
func text(b []byte, length int) string {
	s, _, _ := bytes.Cut(b[:length], []byte{0})
	return string(s)
}
