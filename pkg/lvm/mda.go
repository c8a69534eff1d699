package lvm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// The on-disk format of LVM2, as far as finding a group's name and sequence
// number takes: a label in one of the first four sectors leads to the header
// of the physical volume, that to the metadata areas, and those to the text
// that was committed last. It has not changed since 2002; a header that looks
// otherwise is an error, and the caller asks LVM.
const (
	sectorSize    = 512
	labelSectors  = 4
	labelID       = "LABELONE"
	labelType     = "LVM2 001"
	mdaMagic      = " LVM2 x[5A%r0N*>"
	rawIgnored    = 1
	headOfText    = 512
	maxDiskAreas  = 16
	pvHeaderFixed = 40 // UUID and device size
)

// textHead is how the committed metadata begins, and how large it is.
type textHead struct {
	group string
	// id is the group's UUID.
	id    string
	seqno uint64
	// size is the text's, and limit the largest that LVM would write into the
	// smallest area of the disk.
	size, limit int64
}

// readTextHead reads the beginning of a physical volume's metadata: two small
// reads. An error means that the device cannot be read, is no physical
// volume, or keeps no metadata.
func readTextHead(path string) (textHead, error) {
	f, err := os.Open(path)
	if err != nil {
		return textHead{}, err
	}
	defer f.Close()
	// The kernel would answer from its cache for a disk that is dead. Nobody
	// else needs what it caches of a physical volume.
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return textHead{}, fmt.Errorf("%s: %w", path, err)
	}
	h, err := parseTextHead(f)
	if err != nil {
		return textHead{}, fmt.Errorf("%s: %w", path, err)
	}
	return h, nil
}

func parseTextHead(r io.ReaderAt) (textHead, error) {
	label := make([]byte, labelSectors*sectorSize)
	if _, err := r.ReadAt(label, 0); err != nil {
		return textHead{}, err
	}
	areas, err := metadataAreas(label)
	if err != nil {
		return textHead{}, err
	}
	var best textHead
	for _, a := range areas {
		h, err := readArea(r, a)
		if err != nil {
			return textHead{}, err
		}
		if h.seqno == 0 {
			continue // an area that LVM ignores
		}
		limit := h.limit
		if best.seqno > 0 {
			limit = min(limit, best.limit)
		}
		if h.seqno > best.seqno {
			best = h
		}
		best.limit = limit
	}
	if best.seqno == 0 {
		return textHead{}, fmt.Errorf("no metadata on this physical volume")
	}
	return best, nil
}

type diskArea struct{ offset, size uint64 }

// metadataAreas finds where the metadata areas are, from the first sectors.
func metadataAreas(label []byte) ([]diskArea, error) {
	for s := range labelSectors {
		sector := label[s*sectorSize : (s+1)*sectorSize]
		if string(sector[:8]) != labelID || string(sector[24:32]) != labelType {
			continue
		}
		at := binary.LittleEndian.Uint32(sector[20:24])
		if at < 32 || int(at)+pvHeaderFixed > sectorSize {
			return nil, fmt.Errorf("label: header at %d", at)
		}
		rest := sector[int(at)+pvHeaderFixed:]
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
	return nil, fmt.Errorf("not a physical volume")
}

// areaText is where a metadata area's committed text is, and its checksum.
type areaText struct {
	offset, size uint64
	checksum     uint32
}

// locateText reads an area's header. A zero offset means an area that LVM
// ignores.
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

// read reads the first n bytes of a text. The area is a ring after its header:
// the text may wrap around.
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

// readArea reads the head of the text that a metadata area's header points to.
func readArea(r io.ReaderAt, a diskArea) (textHead, error) {
	t, err := locateText(r, a)
	if err != nil || t.offset == 0 {
		return textHead{}, err
	}
	text, err := t.read(r, a, min(t.size, headOfText))
	if err != nil {
		return textHead{}, err
	}
	h, err := scanTextHead(text)
	// Half of the ring, for the old text must stay while the new one is
	// written, and what LVM keeps from it.
	h.size, h.limit = int64(t.size), int64((a.size-sectorSize)/2-sectorSize)
	return h, err
}

// textSum is LVM's checksum of a text: CRC-32 of another beginning and without
// the inversion at the end.
func textSum(text []byte) uint32 {
	const first = 0xf597a6cf
	return ^crc32.Update(^uint32(first), crc32.IEEETable, text)
}

// readText reads the whole text of highest sequence number among a physical
// volume's areas. A text that is being replaced while it is read does not have
// its checksum, and is an error.
func readText(r io.ReaderAt) (textHead, []byte, error) {
	label := make([]byte, labelSectors*sectorSize)
	if _, err := r.ReadAt(label, 0); err != nil {
		return textHead{}, nil, err
	}
	areas, err := metadataAreas(label)
	if err != nil {
		return textHead{}, nil, err
	}
	var best textHead
	var bestText []byte
	for _, a := range areas {
		t, err := locateText(r, a)
		if err != nil {
			return textHead{}, nil, err
		}
		if t.offset == 0 {
			continue
		}
		text, err := t.read(r, a, t.size)
		if err != nil {
			return textHead{}, nil, err
		}
		if textSum(text) != t.checksum {
			return textHead{}, nil, fmt.Errorf("metadata area at %d: the text's checksum is wrong", a.offset)
		}
		h, err := scanTextHead(text)
		if err != nil {
			return textHead{}, nil, err
		}
		if h.seqno > best.seqno {
			best, bestText = h, text
		}
	}
	if best.seqno == 0 {
		return textHead{}, nil, fmt.Errorf("no metadata on this physical volume")
	}
	return best, bestText, nil
}

// groupText is the whole metadata text of a group, as one of its disks has it.
type groupText struct {
	seqno uint64
	text  []byte
}

// readGroupText reads the text of the group from one of its disks. The group has the UUID,
// unless that is empty.
func readGroupText(path, group, uuid string) (groupText, error) {
	f, err := os.Open(path)
	if err != nil {
		return groupText{}, err
	}
	defer f.Close()
	head, text, err := readText(f)
	if err != nil {
		return groupText{}, err
	}
	if err := head.check(group, uuid); err != nil {
		return groupText{}, err
	}
	return groupText{head.seqno, text}, nil
}

// check returns an error unless the text is that of the group, and of the UUID if one is given.
func (h *textHead) check(group, uuid string) error {
	switch {
	case h.group != group:
		return fmt.Errorf("%w: it belongs to volume group %q", errOtherGroup, h.group)
	case uuid != "" && h.id != uuid:
		return fmt.Errorf("%w: it belongs to a volume group %q with the UUID %s, not %s", errOtherGroup, h.group, h.id, uuid)
	}
	return nil
}

// scanTextHead reads `NAME {\nid = "…"\nseqno = N\n`.
func scanTextHead(text []byte) (textHead, error) {
	name, rest, ok := bytes.Cut(text, []byte(" {\n"))
	if !ok || !ValidName(string(name)) {
		return textHead{}, fmt.Errorf("metadata does not begin with a group's name")
	}
	h := textHead{group: string(name)}
	for line := range bytes.Lines(rest) {
		if id, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("id = ")); ok {
			h.id = string(bytes.Trim(id, `"`))
		}
		value, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("seqno = "))
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(string(value), 10, 64)
		if err != nil {
			return textHead{}, fmt.Errorf("metadata: %w", err)
		}
		h.seqno = n
		return h, nil
	}
	return textHead{}, fmt.Errorf("metadata: no sequence number in its first %d bytes", len(text))
}
