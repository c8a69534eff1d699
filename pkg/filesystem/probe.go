package filesystem

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// superblockArea is the number of bytes that Probe reads. The primary
// superblock of ext4 ends at 2048, of xfs at 512, of btrfs at 68 KiB.
const superblockArea = 68 << 10

// probeOrder is the order of superblocks on the device: mkfs overwrites data
// before its own superblock, but not always behind it.
var probeOrder = []Type{XFS, Ext4, Btrfs}

// Probe reads a device's superblock. It returns ErrUnformatted without a known
// file system from a finished mkfs, blockdev.ErrTimedOut while the device does
// not answer, and the operating system's error if the device cannot be read. It
// forks nothing and writes nothing.
func Probe(device string) (Info, error) {
	start, err := do(device, func() ([]byte, error) { return readStart(device) })
	if err != nil {
		return Info{}, fmt.Errorf("probe: %w", err)
	}
	for _, t := range probeOrder {
		if info, ok := kinds[t].probe(start); ok {
			return info, nil
		}
	}
	return Info{}, fmt.Errorf("probe %s: %w", device, ErrUnformatted)
}

func readStart(device string) ([]byte, error) {
	f, err := os.Open(device)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	start := make([]byte, superblockArea)
	n, err := io.ReadFull(f, start)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return start[:n], nil
}

type signature struct {
	name   string
	offset int64
	magic  string
}

// signatures are those of libblkid that neither lie in the first 4 KiB nor come
// with data there.
var signatures = []signature{
	{"btrfs", btrfsSuperblocks[0] + btrfsMagic, string(btrfsMagicValue)},
	{"gfs2", 64 << 10, "\x01\x16\x19\x70"},
	{"iso9660", 32<<10 + 1, "CD001"},
	{"jfs", 32 << 10, "JFS1"},
	{"ocfs2", 4 << 10, "OCFSV2"},
	{"ocfs2", 8 << 10, "OCFSV2"},
	{"reiserfs", 8<<10 + 52, "ReIsEr"},
	{"reiserfs", 64<<10 + 52, "ReIsEr"},
	{"reiser4", 64 << 10, "ReIsEr4"},
	{"udf", 32<<10 + 1, "BEA01"},
	{"ufs", 64<<10 + 1372, "\x19\x01\x54\x19"},
	{"vmfs", 1 << 20, "\x0d\xd0\x01\xc0"},
	{"vmfs", 2 << 20, "\x5e\xf1\xab\x2f"},
	{"a part of a RAID", 4 << 10, "\xfc\x4e\x2b\xa9"},
	{"bcache", 4<<10 + 24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"},
	{"bcachefs", 4<<10 + 24, "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"},
}

// BehindZeroes names the content of a device that begins with 4 KiB of zeroes,
// whether or not it is mountable or complete. It returns "" if it finds no
// known signature.
func BehindZeroes(r io.ReaderAt) (name string, err error) {
	for _, s := range signatures {
		found := make([]byte, len(s.magic))
		n, err := r.ReadAt(found, s.offset)
		if err != nil && !errors.Is(err, io.EOF) {
			return "", err
		}
		if string(found[:n]) == s.magic {
			return s.name, nil
		}
	}
	return "", nil
}
