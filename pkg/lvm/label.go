package lvm

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// uuidGroups is how reports show a UUID of 32 characters.
var uuidGroups = []int{6, 4, 4, 4, 4, 4, 6}

// NewPhysicalVolumeUUID mints a UUID in LVM's form.
func NewPhysicalVolumeUUID() string {
	const alphabet = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	var b [32]byte
	for i := range b {
		for {
			var c [1]byte
			rand.Read(c[:])
			// Only whole rounds of the alphabet, or some letters came more often.
			if int(c[0]) < 256/len(alphabet)*len(alphabet) {
				b[i] = alphabet[int(c[0])%len(alphabet)]
				break
			}
		}
	}
	return formatUUID(string(b[:]))
}

func formatUUID(s string) string {
	parts := make([]string, 0, len(uuidGroups))
	for _, n := range uuidGroups {
		parts = append(parts, s[:n])
		s = s[n:]
	}
	return strings.Join(parts, "-")
}

// readLabel reads the label and the head of the metadata of a device.
func readLabel(path string) (Label, error) {
	f, err := os.Open(path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%w: %w", ErrNotFound, err)
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
	head := make([]byte, labelSectors*sectorSize)
	if _, err := r.ReadAt(head, 0); err != nil {
		return Label{}, err
	}
	for s := range labelSectors {
		sector := head[s*sectorSize : (s+1)*sectorSize]
		if string(sector[:8]) != labelID || string(sector[24:32]) != labelType {
			continue
		}
		at := int(binary.LittleEndian.Uint32(sector[20:24]))
		if at < 32 || at+pvHeaderFixed > sectorSize {
			return Label{}, fmt.Errorf("label: header at %d", at)
		}
		l := Label{
			UUID:      formatUUID(string(sector[at : at+32])),
			KnownSize: int64(binary.LittleEndian.Uint64(sector[at+32:])),
		}
		areas, err := metadataAreas(head)
		if err != nil {
			return l, err
		}
		l.Orphan = len(areas) > 0
		for _, a := range areas {
			h, err := readArea(r, a)
			if err != nil {
				return l, err
			}
			if h.seqno > 0 {
				l.Group, l.Orphan = h.group, false
			}
		}
		return l, nil
	}
	return Label{}, fmt.Errorf("%w: not a physical volume", ErrNotFound)
}
