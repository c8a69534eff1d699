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

// ext4 is served by the kernel's ext4 driver and e2fsprogs.
type ext4 struct{}

// Fields of the primary superblock, little-endian, offsets from its start
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

// Features of a new file system, see ext4(5). They are named one by one, because those that
// mke2fs and its configuration choose change with its version, and a node's kernel may be
// older than the image. Linux 5.12 mounts a file system with all of them; left out are
// orphan_file (5.15) and what mke2fs has not had on by default.
const (
	ext4Features = "none,sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize"
	ext4Journal  = "has_journal"
	// A fast commit writes what changed, and not whole blocks of metadata. Its replay has had
	// errors in older kernels; nothing of a scratch file system is ever replayed.
	ext4FastCommit = "fast_commit"
)

// Exit statuses of e2fsck(8); a sum of bits.
const (
	e2fsckCorrected   = 1
	e2fsckReboot      = 2
	e2fsckUncorrected = 4
)

func (ext4) mkfs(device string, _ int64, o FormatOptions) []string {
	// Lazy initialisation leaves inode tables and journal to a kernel thread
	// after the first mount, so that mkfs takes no longer for large volumes
	// than for small ones. No discard: the volume is clean, and a discard of a
	// large volume takes seconds on some disks.
	extended := "lazy_itable_init=1,lazy_journal_init=1,nodiscard"
	if o.DAX {
		// Allocation in stripes of 512 blocks puts large files on multiples of
		// 2 MiB, which is what a huge page needs.
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
		"-F", // whatever the device carries; once, so that a mounted one is still refused
		// The page size, also for small volumes, where mkfs would choose 1 KiB:
		// DAX needs it, and growing far is only possible with it.
		"-b", set(SettingBlockSize, pageSize),
		// No blocks kept back for root: nothing of the system is on a
		// volume, and its user paid for all of it.
		"-m", set(SettingReservedPercent, "0"),
		// A file system that finds itself damaged takes no more writes, and is
		// checked before it is mounted the next time.
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
		// Without a journal ext4 does not use an inode for minutes after it was deleted, and
		// looks at each such inode whenever it makes one: the more files come and go, the
		// slower it is.
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
		// A journal to replay asks for a check although the kernel replays it
		// too: errors noted in the journal by the last user come to light only
		// in e2fsck, which ends right after the replay when there are none.
		NeedsCheck: damaged || state&ext4StateValid == 0 || state&ext4StateErrors != 0 ||
			incompat&ext4IncompatRecover != 0 || le32(ext4ErrorCount) != 0,
		Journal: le32(ext4FeatureCompat)&ext4CompatJournal != 0,
	}, true
}

// check lets e2fsck decide how much there is to do, and insists on a full pass
// only when errors are on record afterwards.
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

// ext4IOCResize is EXT4_IOC_RESIZE_FS, _IOW('f', 16, __u64): the argument is the new number of blocks
// (Linux, fs/ext4/ioctl.c).
const ext4IOCResize = 0x40086610

// grow does what resize2fs would do, but at the given path. resize2fs takes the first mount of the
// device that it finds, and fails where that one is read-only.
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

// minimumSize is twice what mkfs.ext4 needs to give a volume with 4 KiB blocks
// a journal (2048 blocks), as half of that would be journal.
func (ext4) minimumSize(bool) int64 { return ext4MinimumDeviceBytes }
