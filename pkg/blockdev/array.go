package blockdev

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
)

const arrayMagic = 0xa92b4efc

// IsArrayMember reports whether a device ends with the superblock of an array, formats 0.90 and
// 1.0. Such a device shows the array's contents even outside the array. Other formats begin
// with the superblock and move the data.
func IsArrayMember(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	return endsAsArrayMember(f, size)
}

func endsAsArrayMember(r io.ReaderAt, size int64) (bool, error) {
	const (
		reserved  = 64 << 10 // of format 0.90
		fromEnd   = 8 << 10  // of format 1.0
		alignment = 4 << 10
	)
	for _, at := range []int64{size/reserved*reserved - reserved, (size - fromEnd) / alignment * alignment} {
		var magic [4]byte
		if at < 0 {
			continue
		}
		if _, err := r.ReadAt(magic[:], at); err != nil {
			return false, err
		}
		// Format 0.90 has the byte order of the machine that wrote it.
		if binary.LittleEndian.Uint32(magic[:]) == arrayMagic || binary.BigEndian.Uint32(magic[:]) == arrayMagic {
			return true, nil
		}
	}
	return false, nil
}
