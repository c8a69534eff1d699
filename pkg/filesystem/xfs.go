package filesystem

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/bits"
	"strconv"
)

// xfs is served by the kernel's xfs driver and xfsprogs.
type xfs struct{}

// Fields of the primary superblock, big-endian, offsets from the device's
// start (Linux, fs/xfs/libxfs/xfs_format.h, struct xfs_dsb).
const (
	xfsBlockSize        = 4
	xfsDataBlocks       = 8
	xfsUUID             = 32
	xfsVersion          = 100
	xfsInProgress       = 126
	xfsFeatureIncompat  = 216
	xfsSuperblockLength = 264

	xfsVersionMask         = 0xf
	xfsVersion5            = 5
	xfsIncompatNeedsRepair = 0x10
	xfsMinBlockSize        = 512
	xfsMaxBlockSize        = 64 << 10
	xfsMinimumDeviceBytes  = 300 << 20
	xfsSmallDAXDevice      = 1 << 30
)

// Features of a new file system, see mkfs.xfs(8). They are named one by one, because those
// that mkfs.xfs chooses change with its version, and a node's kernel may be older than the
// image. Linux 5.12 mounts a file system with all of them; left out are nrext64 (5.19) and
// rmapbt. Whether files share extents (reflink) is said apart.
const (
	xfsFeatures      = "crc=1,finobt=1,rmapbt=0,bigtime=1,inobtcount=1"
	xfsInodeFeatures = "sparse=1,nrext64=0"
)

var xfsMagic = []byte("XFSB")

func (xfs) mkfs(device string, size int64, o FormatOptions) []string {
	args := []string{
		"mkfs.xfs", "-q",
		"-f", // whatever the device carries; a mounted one is still refused
		"-K", // no discard: the volume is clean
		"-m", "uuid=" + o.UUID,
		"-m", xfsFeatures,
		"-i", xfsInodeFeatures,
	}
	// Shared extents and DAX exclude each other before Linux 6.0.
	if o.DAX || o.Settings.value(SettingReflink) == "off" {
		args = append(args, "-m", "reflink=0")
	} else {
		args = append(args, "-m", "reflink=1")
	}
	if o.DAX {
		args = append(args,
			// Allocation in units of 2 MiB, and for files of any size through
			// the extent-size hint (in blocks) that the root directory hands
			// down, so that mappings can use huge pages.
			"-d", "su=2m,sw=1,extszinherit=512",
		)
		if size < xfsSmallDAXDevice {
			// A stripe unit makes mkfs.xfs choose many allocation groups, none
			// of which has space for the smallest log then.
			args = append(args, "-d", "agcount=4", "-l", "size=64m")
		}
	}
	for _, f := range []struct{ name, flag, option string }{
		{SettingLabel, "-L", ""}, {SettingBlockSize, "-b", "size="},
		{SettingInodeSize, "-i", "size="}, {SettingMaxInodePercent, "-i", "maxpct="},
	} {
		if v := o.Settings.value(f.name); v != "" {
			args = append(args, f.flag, f.option+v)
		}
	}
	return append(args, device)
}

func (xfs) probe(start []byte) (Info, bool) {
	if len(start) < xfsSuperblockLength || !bytes.HasPrefix(start, xfsMagic) {
		return Info{}, false
	}
	blockSize := binary.BigEndian.Uint32(start[xfsBlockSize:])
	if blockSize < xfsMinBlockSize || blockSize > xfsMaxBlockSize || bits.OnesCount32(blockSize) != 1 {
		return Info{}, false
	}
	// mkfs.xfs writes the superblock early, marked, and clears the mark last.
	if start[xfsInProgress] != 0 {
		return Info{}, false
	}
	size, ok := sizeOf(binary.BigEndian.Uint64(start[xfsDataBlocks:]), uint64(blockSize))
	if !ok {
		return Info{}, false
	}
	v5 := binary.BigEndian.Uint16(start[xfsVersion:])&xfsVersionMask == xfsVersion5
	return Info{
		Type:       XFS,
		UUID:       formatUUID(start[xfsUUID : xfsUUID+16]),
		SizeBytes:  size,
		NeedsCheck: v5 && binary.BigEndian.Uint32(start[xfsFeatureIncompat:])&xfsIncompatNeedsRepair != 0,
	}, true
}

// check repairs a file system that is marked as in need of repair. For one
// that has only a log to replay the mount is the right tool: xfs_repair
// refuses it.
func (xfs) check(ctx context.Context, device string, o CheckOptions) error {
	info, err := Probe(device)
	if err != nil {
		return err
	}
	if !info.NeedsCheck {
		return nil
	}
	args := []string{"xfs_repair"}
	if o.Memory > 0 {
		// It stays within so much, or says how much it needs. The stacks of its threads,
		// which it hardly uses, would count against a limit of the kernel's.
		args = append(args, "-m", strconv.FormatInt(o.Memory>>20, 10))
	}
	o.Memory = 0
	return runWithin(ctx, device, o, append(args, device))
}

func (xfs) grow(ctx context.Context, device, mountPath string) error {
	return run(ctx, device, []string{"xfs_growfs", "-d", mountPath})
}

// minimumSize is what mkfs.xfs has insisted on since xfsprogs 5.19.
func (xfs) minimumSize(bool) int64 { return xfsMinimumDeviceBytes }
