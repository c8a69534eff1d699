package filesystem

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

type ext4 struct{}

// Fields of the primary superblock, little-endian, as offsets from its start
// (Linux, fs/ext4/ext4.h, struct ext4_super_block).
const (
	ext4SuperblockStart  = 1024
	ext4SuperblockLength = 1024
	ext4BlocksLow        = 0x04
	ext4LogBlockSize     = 0x18
	ext4Magic            = 0x38
	ext4State            = 0x3a
	ext4FeatureCompat    = 0x5c
	ext4FeatureIncompat  = 0x60
	ext4FeatureROCompat  = 0x64
	ext4UUID             = 0x68
	ext4BlocksHigh       = 0x150
	ext4ChecksumType     = 0x175
	ext4ErrorCount       = 0x194
	ext4Checksum         = 0x3fc

	ext4MagicValue         = 0xef53
	ext4StateValid         = 0x1
	ext4StateErrors        = 0x2
	ext4CompatJournal      = 0x4
	ext4IncompatRecover    = 0x4
	ext4Incompat64Bit      = 0x80
	ext4ROCompatMetadata   = 0x400
	ext4ChecksumCRC32C     = 1
	ext4MaxLogBlockSize    = 6 // 64 KiB
	ext4MinimumDeviceBytes = 16 << 20
)

// Features of a new file system, see ext4(5). They are explicit because the
// defaults change with mke2fs's version and configuration, and a node's kernel
// may be older than the image. Linux 5.12 mounts all of them. orphan_file
// (5.15) and features that were off by default in mke2fs are left out.
const (
	ext4Features = "none,sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize"
	ext4Journal  = "has_journal"
	// A fast commit writes changes instead of whole metadata blocks. Older
	// kernels had bugs in its replay, but a scratch file system is never
	// replayed.
	ext4FastCommit = "fast_commit"
)

// Exit status bits of e2fsck(8).
const (
	e2fsckCorrected   = 1
	e2fsckReboot      = 2
	e2fsckUncorrected = 4
)

func (ext4) mkfs(device string, _ int64, o FormatOptions) []string {
	// Lazy initialization leaves inode tables and journal to a kernel thread
	// after the first mount, so mkfs takes no longer for large volumes. No
	// discard: the volume is clean, and on some disks a discard of a large one
	// takes seconds.
	extended := "lazy_itable_init=1,lazy_journal_init=1,nodiscard"
	if o.DAX {
		// Stripes of 512 blocks align large files to 2 MiB, as huge pages
		// require.
		extended += ",stride=512,stripe_width=512"
	}
	set := func(name, otherwise string) string {
		if v := o.Settings.value(name); v != "" {
			return v
		}
		return otherwise
	}
	args := []string{
		"mkfs.ext4", "-q",
		"-F", // overwrite existing data; given once, mkfs still refuses a mounted device
		// The page size even for small volumes, where mkfs would choose 1 KiB:
		// DAX needs it, and so does growing far.
		"-b", set(SettingBlockSize, pageSize),
		// Reserve no blocks for root: a volume has no system files, and its
		// user paid for all of it.
		"-m", set(SettingReservedPercent, "0"),
		// After detecting damage the file system takes no more writes and is
		// checked before the next mount.
		"-e", "remount-ro",
		"-U", o.UUID,
	}
	for _, f := range []struct{ name, flag string }{
		{SettingLabel, "-L"}, {SettingInodeSize, "-I"}, {SettingBytesPerInode, "-i"},
	} {
		if v := o.Settings.value(f.name); v != "" {
			args = append(args, f.flag, v)
		}
	}
	features := ext4Features + "," + ext4Journal
	if o.Profile == Scratch {
		// Without a journal ext4 does not reuse a deleted inode for minutes,
		// and examines each such inode whenever it creates one: turnover of
		// many files would slow it down.
		features += "," + ext4FastCommit
	}
	return append(args, "-O", features, "-E", extended, device)
}

func (ext4) probe(start []byte) (Info, bool) {
	if len(start) < ext4SuperblockStart+ext4SuperblockLength {
		return Info{}, false
	}
	sb := start[ext4SuperblockStart : ext4SuperblockStart+ext4SuperblockLength]
	le16 := func(at int) uint16 { return binary.LittleEndian.Uint16(sb[at:]) }
	le32 := func(at int) uint32 { return binary.LittleEndian.Uint32(sb[at:]) }

	logBlockSize := le32(ext4LogBlockSize)
	if le16(ext4Magic) != ext4MagicValue || logBlockSize > ext4MaxLogBlockSize {
		return Info{}, false
	}
	incompat, roCompat, state := le32(ext4FeatureIncompat), le32(ext4FeatureROCompat), le16(ext4State)
	blocks := uint64(le32(ext4BlocksLow))
	if incompat&ext4Incompat64Bit != 0 {
		blocks |= uint64(le32(ext4BlocksHigh)) << 32
	}
	size, ok := sizeOf(blocks, 1024<<logBlockSize)
	if !ok {
		return Info{}, false
	}
	damaged := roCompat&ext4ROCompatMetadata != 0 && sb[ext4ChecksumType] == ext4ChecksumCRC32C &&
		le32(ext4Checksum) != ^crc32.Checksum(sb[:ext4Checksum], crc32.MakeTable(crc32.Castagnoli))
	return Info{
		Type:      Ext4,
		UUID:      formatUUID(sb[ext4UUID : ext4UUID+16]),
		SizeBytes: size,
		// Check even if there is only a journal to replay, which the kernel
		// does too: only e2fsck acts on errors recorded in the journal, and
		// without any it ends right after the replay.
		NeedsCheck: damaged || state&ext4StateValid == 0 || state&ext4StateErrors != 0 ||
			incompat&ext4IncompatRecover != 0 || le32(ext4ErrorCount) != 0,
		Journal: le32(ext4FeatureCompat)&ext4CompatJournal != 0,
	}, true
}

// check first lets e2fsck decide how much to do, and forces a full pass only if
// errors remain on record.
func (e ext4) check(ctx context.Context, device string, o CheckOptions) error {
	if err := e.fsck(ctx, o, device); err != nil {
		return err
	}
	if info, err := Probe(device); err != nil || !info.NeedsCheck {
		return err
	}
	return e.fsck(ctx, o, device, "-f")
}

func (ext4) fsck(ctx context.Context, o CheckOptions, device string, flags ...string) error {
	err := runWithin(ctx, device, o, slices.Concat([]string{"e2fsck", "-p"}, flags, []string{device}))
	code, exited := exitCode(err)
	switch {
	case !exited:
		return err
	case code&^(e2fsckCorrected|e2fsckReboot) == 0:
		return nil
	case code&e2fsckUncorrected != 0:
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return err
}

// ext4IOCResize is EXT4_IOC_RESIZE_FS, _IOW('f', 16, __u64); its argument is
// the new number of blocks (Linux, fs/ext4/ioctl.c).
const ext4IOCResize = 0x40086610

// grow does resize2fs's work at mountPath. resize2fs uses the first mount of
// the device that it finds and fails if that one is read-only.
func (ext4) grow(ctx context.Context, device, mountPath string) error {
	_, err := Do(ctx, device, func() (struct{}, error) { return struct{}{}, growExt4(device, mountPath) })
	return err
}

func growExt4(device, mountPath string) error {
	size, err := deviceSize(device)
	if err != nil {
		return err
	}
	var node unix.Stat_t
	if err := unix.Stat(device, &node); err != nil {
		return &os.PathError{Op: "stat", Path: device, Err: err}
	}
	dir, err := os.OpenFile(mountPath, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	var at unix.Stat_t
	var mounted unix.Statfs_t
	if err := errors.Join(unix.Fstat(int(dir.Fd()), &at), unix.Fstatfs(int(dir.Fd()), &mounted)); err != nil {
		return &os.PathError{Op: "stat", Path: mountPath, Err: err}
	}
	if at.Dev != node.Rdev || mounted.Type != unix.EXT4_SUPER_MAGIC {
		return fmt.Errorf("%s is not where %s is mounted", mountPath, device)
	}
	blocks := size / mounted.Bsize
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), ext4IOCResize, uintptr(unsafe.Pointer(&blocks))); errno != 0 {
		return &os.PathError{Op: "EXT4_IOC_RESIZE_FS", Path: mountPath, Err: errno}
	}
	return nil
}

// minimumSize returns twice the size for which mkfs.ext4 creates a journal
// (2048 blocks of 4 KiB), since half of that would be journal.
func (ext4) minimumSize(bool) int64 { return ext4MinimumDeviceBytes }
