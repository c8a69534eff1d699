package filesystem

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// superblockArea is how much of a device's start Probe reads: ext4's primary
// superblock ends at 2048, xfs' at 512, btrfs' at 68 KiB.
const superblockArea = 68 << 10

// probeOrder is by where the superblocks lie: mkfs overwrites what lies before
// its own, but not always what lies behind it.
var probeOrder = []Type{XFS, Ext4, Btrfs}

// Probe reads the superblock of the device. It returns ErrUnformatted when no
// file system that a finished mkfs left is found, and the operating system's
// error, such as an I/O error, when the device cannot be read. It forks
// nothing and writes nothing.
func Probe(device string) (Info, error) {
	f, err := os.Open(device)
	if err != nil {
		return Info{}, fmt.Errorf("probe: %w", err)
	}
	defer f.Close()
	start := make([]byte, superblockArea)
	n, err := io.ReadFull(f, start)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return Info{}, fmt.Errorf("probe: %w", err)
	}
	for _, t := range probeOrder {
		if info, ok := kinds[t].probe(start[:n]); ok {
			return info, nil
		}
	}
	return Info{}, fmt.Errorf("probe %s: %w", device, ErrUnformatted)
}
