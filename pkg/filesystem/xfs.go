package filesystem

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/bits"
	"strconv"
)

type xfs struct{}

// Fields of the primary superblock, big-endian, as offsets from the device's
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

// Features of a new file system, see mkfs.xfs(8). They are explicit because the
// defaults change with mkfs.xfs's version, and a node's kernel may be older
// than the image. Linux 5.12 mounts all of them. nrext64 (5.19) and rmapbt are
// off; reflink is set separately.
const (
	xfsFeatures      = "crc=1,finobt=1,rmapbt=0,bigtime=1,inobtcount=1"
	xfsInodeFeatures = "sparse=1,nrext64=0"
)

var xfsMagic = []byte("XFSB")

func (xfs) mkfs(device string, size int64, o FormatOptions) []string {
	args := []string{
		"mkfs.xfs", "-q",
		"-f", // overwrite existing data; mkfs still refuses a mounted device
		"-K", // no discard: the volume is clean
		"-m", "uuid=" + o.UUID,
		"-m", xfsFeatures,
		"-i", xfsInodeFeatures,
	}
	// Before Linux 6.0 reflink and DAX exclude each other.
	if o.DAX || o.Settings.value(SettingReflink) == "off" {
		args = append(args, "-m", "reflink=0")
	} else {
		args = append(args, "-m", "reflink=1")
	}
	if o.DAX {
		args = append(args,
			// Allocate in units of 2 MiB, by the extent size hint (in blocks)
			// that the root directory hands down even for small files, so that
			// mappings can use huge pages.
			"-d", "su=2m,sw=1,extszinherit=512",
		)
		if size < xfsSmallDAXDevice {
			// With a stripe unit mkfs.xfs chooses many allocation groups, each
			// too small for the smallest log.
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
	// mkfs.xfs writes the superblock early with this mark, and clears the mark
	// last.
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

// check repairs only a file system marked as in need of repair. If there is
// just a log to replay the mount must do it: xfs_repair refuses.
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
		// xfs_repair stays within this or reports its need. A kernel limit
		// would count the stacks of its threads, which it hardly uses.
		args = append(args, "-m", strconv.FormatInt(o.Memory>>20, 10))
	}
	o.Memory = 0
	return runWithin(ctx, device, o, append(args, device))
}

func (xfs) grow(ctx context.Context, device, mountPath string) error {
	return run(ctx, device, []string{"xfs_growfs", "-d", mountPath})
}

// minimumSize returns the minimum of mkfs.xfs since xfsprogs 5.19.
func (xfs) minimumSize(bool) int64 { return xfsMinimumDeviceBytes }
