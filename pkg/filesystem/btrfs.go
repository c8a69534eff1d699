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

// btrfs is served by the kernel's btrfs driver and btrfs-progs.
type btrfs struct{}

// Fields of the superblock, little-endian, offsets from its start (Linux,
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

// btrfsFeatures of a new file system, see mkfs.btrfs(8). They are named one by one, because
// those that mkfs.btrfs chooses change with its version, and a node's kernel may be older
// than the image. Linux 5.12 mounts a file system with all of them.
const (
	btrfsFeatures        = "extref,skinny-metadata,no-holes"
	btrfsRuntimeFeatures = "free-space-tree"
)

var (
	btrfsMagicValue = []byte("_BHRfS_M")
	// btrfsSuperblocks is where the superblock and its copies lie, as far as the
	// device reaches; the kernel mounts by the first.
	btrfsSuperblocks = []int64{64 << 10, 64 << 20, 256 << 30}
)

func (btrfs) mkfs(device string, _ int64, o FormatOptions) []string {
	args := []string{
		"mkfs.btrfs", "-q",
		"-f", // whatever the device carries; a mounted one is still refused
		"-K", // no discard: the volume is clean
		// Not -U: for it mkfs.btrfs reads every block device of the machine, to see
		// whether the UUID is in use. SetUUID comes after it instead.
		"-O", btrfsFeatures, "-R", btrfsRuntimeFeatures,
	}
	if v := o.Settings.value(SettingLabel); v != "" {
		args = append(args, "-L", v)
	}
	if v := o.Settings.value(SettingNodeSize); v != "" {
		args = append(args, "-n", v)
	}
	// Two copies of the metadata by default, so that a bad sector does not cost
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
		// The log is replayed by the mount. What a mount cannot cope with is a half-written
		// superblock, of which there are copies.
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

// btrfsChecksumWrong judges checksums of the kind that mkfs.btrfs makes unless
// asked otherwise, and lets others pass.
func btrfsChecksumWrong(sb []byte) bool {
	return binary.LittleEndian.Uint16(sb[btrfsChecksumType:]) == btrfsChecksumCRC32C &&
		binary.LittleEndian.Uint32(sb) != btrfsChecksum(sb)
}

// check replaces a damaged superblock by a copy. It never runs btrfs check
// --repair, which its manual warns of.
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

// btrfsSuperRecovered is the exit status of btrfs rescue super-recover when it
// replaced bad superblocks.
const btrfsSuperRecovered = 2

func (btrfs) grow(ctx context.Context, device, mountPath string) error {
	return run(ctx, device, []string{"btrfs", "filesystem", "resize", "max", mountPath})
}

// minimumSize is the smallest size that the kernel lets a btrfs grow to;
// mkfs.btrfs itself insists on 109 MiB.
func (btrfs) minimumSize(bool) int64 { return btrfsMinimumDeviceBytes }

// setUUID gives the file system another UUID, without touching its trees: they
// keep the one that they were made with, which the superblock holds as the
// metadata's UUID from then on (Linux 5.0). Each copy of the superblock is
// written in one piece, the first one last: until then, and again when it is
// done, the file system is whole.
func (btrfs) setUUID(device string, uuid [16]byte) (err error) {
	// O_EXCL: a device that is mounted is refused.
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
		// In order, so that what is there after a power cut is one or the other.
		if err := f.Sync(); err != nil {
			return err
		}
	}
	return nil
}
