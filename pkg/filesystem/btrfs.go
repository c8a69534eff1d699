package filesystem

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
)

type btrfs struct{}

// Superblock fields, little-endian, as offsets from its start (Linux,
// include/uapi/linux/btrfs_tree.h, struct btrfs_super_block).
const (
	btrfsChecksumLength  = 32
	btrfsUUID            = 0x20
	btrfsOwnAddress      = 0x30
	btrfsMagic           = 0x40
	btrfsTotalBytes      = 0x70
	btrfsFeatureIncompat = 0xbc
	btrfsChecksumType    = 0xc4
	btrfsMetadataUUID    = 0x23b

	btrfsSuperblockLength     = 4096
	btrfsChecksumCRC32C       = 0
	btrfsIncompatMetadataUUID = 0x400
	btrfsMinimumDeviceBytes   = 256 << 20
)

// btrfsFeatures of a new file system, see mkfs.btrfs(8). They are explicit
// because the defaults change with the version of mkfs.btrfs, and a node's
// kernel may be older than the image. Linux 5.12 mounts all of them.
const (
	btrfsFeatures        = "extref,skinny-metadata,no-holes"
	btrfsRuntimeFeatures = "free-space-tree"
)

var (
	btrfsMagicValue = []byte("_BHRfS_M")
	// btrfsSuperblocks are the offsets of the superblock and its copies, as far
	// as the device reaches. The kernel mounts by the first.
	btrfsSuperblocks = []int64{64 << 10, 64 << 20, 256 << 30}
)

func (btrfs) mkfs(device string, _ int64, o FormatOptions) []string {
	args := []string{
		"mkfs.btrfs", "-q",
		"-f", // overwrite existing data; mkfs still refuses a mounted device
		"-K", // no discard: the volume is clean
		// Not -U: for it mkfs.btrfs searches every block device of the machine
		// for the UUID. SetUUID follows instead.
		"-O", btrfsFeatures, "-R", btrfsRuntimeFeatures,
	}
	if v := o.Settings.value(SettingLabel); v != "" {
		args = append(args, "-L", v)
	}
	if v := o.Settings.value(SettingNodeSize); v != "" {
		args = append(args, "-n", v)
	}
	// Metadata has two copies by default, so that a bad sector does not cost
	// the file system.
	metadata := "dup"
	if v := o.Settings.value(SettingMetadata); v != "" {
		metadata = v
	}
	return append(args, "-d", "single", "-m", metadata, device)
}

func (btrfs) probe(start []byte) (Info, bool) {
	at := int(btrfsSuperblocks[0])
	if len(start) < at+btrfsSuperblockLength {
		return Info{}, false
	}
	sb := start[at : at+btrfsSuperblockLength]
	if !isBtrfsSuperblock(sb, btrfsSuperblocks[0]) {
		return Info{}, false
	}
	size, ok := sizeOf(binary.LittleEndian.Uint64(sb[btrfsTotalBytes:]), 1)
	if !ok {
		return Info{}, false
	}
	return Info{
		Type: Btrfs, UUID: formatUUID(sb[btrfsUUID : btrfsUUID+16]), SizeBytes: size,
		// Mounting replays the log. It cannot handle a half-written superblock,
		// but there are copies.
		NeedsCheck: btrfsChecksumWrong(sb),
	}, true
}

func isBtrfsSuperblock(sb []byte, at int64) bool {
	return bytes.Equal(sb[btrfsMagic:btrfsMagic+len(btrfsMagicValue)], btrfsMagicValue) &&
		binary.LittleEndian.Uint64(sb[btrfsOwnAddress:]) == uint64(at)
}

func btrfsChecksum(sb []byte) uint32 {
	return crc32.Checksum(sb[btrfsChecksumLength:], crc32.MakeTable(crc32.Castagnoli))
}

// btrfsChecksumWrong only verifies checksums of mkfs.btrfs's default type.
func btrfsChecksumWrong(sb []byte) bool {
	return binary.LittleEndian.Uint16(sb[btrfsChecksumType:]) == btrfsChecksumCRC32C &&
		binary.LittleEndian.Uint32(sb) != btrfsChecksum(sb)
}

// check restores a damaged superblock from a copy. It never runs btrfs check
// --repair, which its manual warns against.
func (btrfs) check(ctx context.Context, device string, o CheckOptions) error {
	info, err := Probe(device)
	if err != nil || !info.NeedsCheck {
		return err
	}
	err = runWithin(ctx, device, o, []string{"btrfs", "rescue", "super-recover", "-y", device})
	if code, exited := exitCode(err); err != nil && (!exited || code != btrfsSuperRecovered) {
		return err
	}
	if info, err = Probe(device); err == nil && info.NeedsCheck {
		return fmt.Errorf("%w: no copy of the superblock is good", ErrCorrupt)
	}
	return err
}

// btrfsSuperRecovered is btrfs rescue super-recover's exit status after
// replacing bad superblocks.
const btrfsSuperRecovered = 2

func (btrfs) grow(ctx context.Context, device, mountPath string) error {
	return run(ctx, device, []string{"btrfs", "filesystem", "resize", "max", mountPath})
}

// minimumSize returns the smallest size to which the kernel can grow a btrfs;
// mkfs.btrfs needs only 109 MiB.
func (btrfs) minimumSize(bool) int64 { return btrfsMinimumDeviceBytes }

// setUUID changes the UUID without rewriting the trees: they keep the old one,
// which the superblock then records as metadata UUID (Linux 5.0). It writes
// each copy of the superblock in one piece, the first copy last. The file
// system is consistent before and after that last write.
func (btrfs) setUUID(device string, uuid [16]byte) (err error) {
	// O_EXCL fails on a mounted device.
	f, err := os.OpenFile(device, os.O_RDWR|os.O_EXCL, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Seek(0, 2)
	if err != nil {
		return err
	}
	for i := len(btrfsSuperblocks) - 1; i >= 0; i-- {
		at := btrfsSuperblocks[i]
		if at+btrfsSuperblockLength > size {
			continue
		}
		sb := make([]byte, btrfsSuperblockLength)
		if _, err := f.ReadAt(sb, at); err != nil {
			return err
		}
		switch {
		case !isBtrfsSuperblock(sb, at) && i > 0:
			continue // the file system is smaller than its device
		case !isBtrfsSuperblock(sb, at):
			return ErrUnformatted
		case binary.LittleEndian.Uint16(sb[btrfsChecksumType:]) != btrfsChecksumCRC32C:
			return errors.New("the superblock has a checksum of a kind that is not supported")
		case btrfsChecksumWrong(sb):
			return fmt.Errorf("%w: the checksum of the superblock at %d is wrong", ErrCorrupt, at)
		}
		incompat := binary.LittleEndian.Uint64(sb[btrfsFeatureIncompat:])
		if incompat&btrfsIncompatMetadataUUID == 0 {
			binary.LittleEndian.PutUint64(sb[btrfsFeatureIncompat:], incompat|btrfsIncompatMetadataUUID)
			copy(sb[btrfsMetadataUUID:], sb[btrfsUUID:btrfsUUID+16])
		}
		copy(sb[btrfsUUID:], uuid[:])
		binary.LittleEndian.PutUint32(sb, btrfsChecksum(sb))
		if _, err := f.WriteAt(sb, at); err != nil {
			return err
		}
		// Sync each, so that a power cut leaves the old or the new UUID.
		if err := f.Sync(); err != nil {
			return err
		}
	}
	return nil
}
