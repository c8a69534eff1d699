package ondisk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"strconv"

	"github.com/carve-csi/carve/pkg/blockdev"
)

// A label in one of the first four sectors leads to the header of the physical volume, that to
// the metadata areas, and those to the last committed text.
const (
	sectorSize    = blockdev.SectorSize
	labelSectors  = 4
	labelID       = "LABELONE"
	labelType     = "LVM2 001"
	mdaMagic      = " LVM2 x[5A%r0N*>"
	rawIgnored    = 1
	headOfText    = 512
	maxDiskAreas  = 16
	pvHeaderFixed = 40 // UUID and device size
)

// LabelLength is the part of every device that LVM reads to find a label, in bytes.
const LabelLength = labelSectors * sectorSize

// ErrOtherGroup means that a disk belongs to another group than expected.
var ErrOtherGroup = errors.New("another volume group")

var errNoMetadata = errors.New("no metadata on this physical volume")

// Head is the beginning of the committed metadata.
type Head struct {
	Group, UUID string
	Seqno       uint64
	// Size is the text's, and Limit the largest that LVM would write into the smallest area of
	// the disk, both in bytes.
	Size, Limit int64
}

// Check returns ErrOtherGroup unless the text belongs to the group, and has uuid unless that is
// empty.
func (h *Head) Check(group, uuid string) error {
	switch {
	case h.Group != group:
		return fmt.Errorf("%w: it belongs to volume group %q", ErrOtherGroup, h.Group)
	case uuid != "" && h.UUID != uuid:
		return fmt.Errorf("%w: it belongs to a volume group %q with the UUID %s, not %s", ErrOtherGroup, h.Group, h.UUID, uuid)
	}
	return nil
}

// ReadHead reads the head past the page cache, in three small reads. It fails if the device
// cannot be read, is not a physical volume, or holds no metadata.
func ReadHead(path string) (Head, error) {
	f, err := blockdev.OpenUncached(path, 0)
	if err != nil {
		return Head{}, err
	}
	defer f.Close()
	h, _, err := readMetadata(f, false)
	if err != nil {
		return Head{}, fmt.Errorf("%s: %w", path, err)
	}
	return h, nil
}

// Text is the whole metadata of a group, as one of its disks has it.
type Text struct {
	Seqno uint64
	Text  []byte
}

// ReadText reads a group's metadata from one of its disks. It returns ErrOtherGroup like Check.
func ReadText(path, group, uuid string) (Text, error) {
	f, err := os.Open(path)
	if err != nil {
		return Text{}, err
	}
	defer f.Close()
	h, text, err := readMetadata(f, true)
	if err != nil {
		return Text{}, err
	}
	if err := h.Check(group, uuid); err != nil {
		return Text{}, err
	}
	return Text{h.Seqno, text}, nil
}

func readMetadata(r io.ReaderAt, whole bool) (Head, []byte, error) {
	header, err := findHeader(r)
	if err != nil {
		return Head{}, nil, err
	}
	areas, err := metadataAreas(header)
	if err != nil {
		return Head{}, nil, err
	}
	return newest(r, areas, whole)
}

// findHeader returns the header of the physical volume up to the sector's end: its UUID, its
// size, and the lists of areas. It returns blockdev.ErrNotFound if there is no label.
func findHeader(r io.ReaderAt) ([]byte, error) {
	head := make([]byte, LabelLength)
	if _, err := r.ReadAt(head, 0); err != nil {
		return nil, err
	}
	for s := range labelSectors {
		sector := head[s*sectorSize : (s+1)*sectorSize]
		if string(sector[:8]) != labelID || string(sector[24:32]) != labelType {
			continue
		}
		at := binary.LittleEndian.Uint32(sector[20:24])
		if at < 32 || int64(at)+pvHeaderFixed > sectorSize {
			return nil, fmt.Errorf("label: header at %d", at)
		}
		return sector[at:], nil
	}
	return nil, fmt.Errorf("%w: not a physical volume", blockdev.ErrNotFound)
}

type diskArea struct{ offset, size uint64 }

func metadataAreas(header []byte) ([]diskArea, error) {
	rest := header[pvHeaderFixed:]
	// Two lists, each ended by a zero offset: data areas, metadata areas.
	var lists [2][]diskArea
	for i := range lists {
		for range maxDiskAreas {
			if len(rest) < 16 {
				return nil, fmt.Errorf("label: list of areas does not end")
			}
			a := diskArea{binary.LittleEndian.Uint64(rest), binary.LittleEndian.Uint64(rest[8:])}
			rest = rest[16:]
			if a.offset == 0 {
				break
			}
			lists[i] = append(lists[i], a)
		}
	}
	return lists[1], nil
}

// newest returns the text with the highest sequence number, whole or its beginning, and the
// limit of the smallest area. It returns errNoMetadata if LVM ignores all areas.
func newest(r io.ReaderAt, areas []diskArea, whole bool) (best Head, bestText []byte, err error) {
	limit := int64(math.MaxInt64)
	for _, a := range areas {
		t, err := locateText(r, a)
		if err != nil {
			return Head{}, nil, err
		}
		if t.offset == 0 {
			continue
		}
		length := t.size
		if !whole {
			length = min(length, headOfText)
		}
		text, err := t.read(r, a, length)
		if err != nil {
			return Head{}, nil, err
		}
		if whole && textSum(text) != t.checksum {
			return Head{}, nil, fmt.Errorf("metadata area at %d: the text's checksum is wrong", a.offset)
		}
		h, err := scanHead(text)
		if err != nil {
			return Head{}, nil, err
		}
		h.Size = int64(t.size)
		// LVM uses half of the ring less a reserve: the old text must survive while the new one
		// is written.
		limit = min(limit, int64((a.size-sectorSize)/2-sectorSize))
		if h.Seqno > best.Seqno {
			best, bestText = h, text
		}
	}
	if best.Seqno == 0 {
		return Head{}, nil, errNoMetadata
	}
	best.Limit = limit
	return best, bestText, nil
}

type areaText struct {
	offset, size uint64
	checksum     uint32
}

// locateText reads an area's header. A zero offset means an area that LVM ignores.
func locateText(r io.ReaderAt, a diskArea) (areaText, error) {
	var header [sectorSize]byte
	if _, err := r.ReadAt(header[:], int64(a.offset)); err != nil {
		return areaText{}, err
	}
	if string(header[4:20]) != mdaMagic {
		return areaText{}, fmt.Errorf("metadata area at %d: no magic", a.offset)
	}
	// raw_locn[0] is the committed text: offset, size, checksum, flags.
	t := areaText{
		offset: binary.LittleEndian.Uint64(header[40:]), size: binary.LittleEndian.Uint64(header[48:]),
		checksum: binary.LittleEndian.Uint32(header[56:]),
	}
	flags := binary.LittleEndian.Uint32(header[60:])
	if t.offset == 0 || flags&rawIgnored != 0 {
		return areaText{}, nil
	}
	if t.offset >= a.size || t.size >= a.size || a.size > math.MaxInt64 {
		return areaText{}, fmt.Errorf("metadata area at %d: text of %d bytes at %d", a.offset, t.size, t.offset)
	}
	return t, nil
}

// read reads the first n bytes of a text, which may wrap around: the area is a ring after its
// header.
func (t areaText) read(r io.ReaderAt, a diskArea, n uint64) ([]byte, error) {
	text := make([]byte, n)
	first := min(n, a.size-t.offset)
	if _, err := r.ReadAt(text[:first], int64(a.offset+t.offset)); err != nil {
		return nil, err
	}
	if first < n {
		if _, err := r.ReadAt(text[first:], int64(a.offset+sectorSize)); err != nil {
			return nil, err
		}
	}
	return text, nil
}

// textSum is LVM's checksum: CRC-32 with another initial value and without the final inversion.
func textSum(text []byte) uint32 {
	const first = 0xf597a6cf
	return ^crc32.Update(^uint32(first), crc32.IEEETable, text)
}

// scanHead parses `NAME {\nid = "…"\nseqno = N\n`.
func scanHead(text []byte) (Head, error) {
	name, rest, ok := bytes.Cut(text, []byte(" {\n"))
	if !ok || !ValidName(string(name)) {
		return Head{}, fmt.Errorf("metadata does not begin with a group's name")
	}
	h := Head{Group: string(name)}
	for line := range bytes.Lines(rest) {
		if id, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("id = ")); ok {
			h.UUID = string(bytes.Trim(id, `"`))
		}
		value, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("seqno = "))
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(string(value), 10, 64)
		if err != nil {
			return Head{}, fmt.Errorf("metadata: %w", err)
		}
		h.Seqno = n
		return h, nil
	}
	return Head{}, fmt.Errorf("metadata: no sequence number in its first %d bytes", len(text))
}
