package ondisk

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/carve-csi/carve/pkg/blockdev"
)

// Label describes a physical volume by its first sectors.
type Label struct {
	// UUID is formatted as in reports.
	UUID string
	// Group is the volume group's name. Orphan means that the metadata says there is none.
	// Neither is set if the physical volume holds no metadata.
	Group  string
	Orphan bool
	// KnownSize is the device's size by LVM's metadata, and Size its real one, in bytes.
	KnownSize, Size int64
}

// uuidGroups are the hyphenated parts of a UUID in reports.
var uuidGroups = []int{6, 4, 4, 4, 4, 4, 6}

const uuidAlphabet = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// NewUUID returns a random UUID in LVM's format.
func NewUUID() string {
	const length = 32
	text := make([]byte, 0, length)
	// Use only whole rounds of the alphabet, or some letters would be more frequent.
	const rounds = 256 / len(uuidAlphabet) * len(uuidAlphabet)
	for len(text) < length {
		var b [1]byte
		rand.Read(b[:])
		if int(b[0]) < rounds {
			text = append(text, uuidAlphabet[int(b[0])%len(uuidAlphabet)])
		}
	}
	return formatUUID(string(text))
}

func formatUUID(s string) string {
	parts := make([]string, 0, len(uuidGroups))
	for _, n := range uuidGroups {
		parts = append(parts, s[:n])
		s = s[n:]
	}
	return strings.Join(parts, "-")
}

// ReadLabel reads a device's label and the head of its metadata. It returns
// blockdev.ErrNotFound if the device is not a physical volume. With an error it still returns
// what it read before.
func ReadLabel(path string) (Label, error) {
	f, err := os.Open(path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%w: %w", blockdev.ErrNotFound, err)
		}
		return Label{}, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return Label{}, fmt.Errorf("%s: %w", path, err)
	}
	l, err := parseLabel(f)
	l.Size = size
	if err != nil {
		return l, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

func parseLabel(r io.ReaderAt) (Label, error) {
	header, err := findHeader(r)
	if err != nil {
		return Label{}, err
	}
	l := Label{UUID: formatUUID(string(header[:32])), KnownSize: int64(binary.LittleEndian.Uint64(header[32:]))}
	areas, err := metadataAreas(header)
	if err != nil {
		return l, err
	}
	switch h, _, err := newest(r, areas, false); {
	case errors.Is(err, errNoMetadata):
		l.Orphan = len(areas) > 0
	case err != nil:
		return l, err
	default:
		l.Group = h.Group
	}
	return l, nil
}
