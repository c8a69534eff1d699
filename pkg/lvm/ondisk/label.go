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

// Label is what the first sectors of a physical volume say.
type Label struct {
	// UUID is the physical volume's, as reports show it.
	UUID string
	// Group is the volume group's name, or empty. Orphan is true when its
	// metadata says that it belongs to none; both are empty and false when it
	// keeps no metadata.
	Group  string
	Orphan bool
	// KnownSize is the size of the device by LVM's metadata, and Size what it
	// has, in bytes.
	KnownSize, Size int64
}

// uuidGroups is how reports show a UUID of 32 characters.
var uuidGroups = []int{6, 4, 4, 4, 4, 4, 6}

// uuidAlphabet is what a UUID is made of.
const uuidAlphabet = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// NewUUID draws a UUID in LVM's form.
func NewUUID() string {
	const length = 32
	text := make([]byte, 0, length)
	// Only whole rounds of the alphabet count, or some letters came more often.
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

// ReadLabel reads the label and the head of the metadata of a device. ErrNotFound
// (blockdev) when it is no physical volume. What was read before an error is
// returned with it.
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
