package lvm

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// Thin handles thin pools and the volumes in them. It is part of Groups, and the same rules
// hold. Thin volumes are extended and removed like others; only their pool takes extents of the
// group.
type Thin interface {
	// CreatePool creates an active thin pool that zeroes new blocks and fails writes when full,
	// with a spare for the repair of its metadata.
	CreatePool(ctx context.Context, o PoolOptions) error

	// CreateThin creates an active thin volume, which reads as zeroes if its pool zeroes new
	// blocks. It raises the group's sequence number by ThinSteps.
	CreateThin(ctx context.Context, o ThinOptions) error

	// Snapshot creates a thin volume with the current contents of another one in the same pool;
	// a file system mounted there is frozen for it. It raises the sequence number like
	// CreateThin, and returns ErrNotFound if the origin does not exist.
	Snapshot(ctx context.Context, o SnapshotOptions) error

	// MakePool converts two volumes of any layout to such a pool: the one with the pool's name
	// becomes its data, the other its metadata. Their contents are lost. It ignores o.Extents,
	// o.MetadataBytes and o.Tags. See lvmthin(7).
	MakePool(ctx context.Context, o PoolOptions, metadata string) error

	// BeginPoolCheck prepares CheckPool of an inactive thin pool, quickly. Until CheckPool
	// ends, even across a crash, nothing activates the pool but ActivatePool.
	BeginPoolCheck(ctx context.Context, group, pool string) error

	// CheckPool checks the metadata of a thin pool after BeginPoolCheck. It may take hours,
	// during which the group can be changed. enough is false without an error if only LVM can
	// do all that the pool needs: ActivatePool must then check.
	CheckPool(ctx context.Context, group, pool string) (enough bool, err error)

	// ActivatePool is Activate for one thin pool. Unless checked, LVM checks the pool's
	// metadata, with the longer deadline. That may take hours, during which LVM answers nothing
	// about the group.
	ActivatePool(ctx context.Context, group, pool string, checked bool) error

	// ExtendPool grows a pool's data to extents in all. on, unless empty, places the growth.
	ExtendPool(ctx context.Context, group, pool string, extents int64, on ...layout.Share) error

	// ExtendPoolMetadata grows a pool's metadata to bytes in all, a multiple of the extent
	// size, and the spare for its repair with it. on, unless empty, places the growth.
	ExtendPoolMetadata(ctx context.Context, group, pool string, bytes int64, on ...layout.Share) error

	// Untag removes tags from volumes that have them. It raises the group's sequence number by
	// one per volume.
	Untag(ctx context.Context, group string, volumes []string, tags ...string) error

	// Tag adds a tag to volumes. It raises the group's sequence number by one per volume.
	Tag(ctx context.Context, group string, volumes []string, tag string) error

	// PoolStatus asks the kernel how full a pool is, without a disk access. It returns
	// ErrTimedOut if the kernel does not answer.
	PoolStatus(group, pool string) (PoolStatus, error)
}

// ThinSteps is the increase of the sequence number by creating a thin volume or snapshot: LVM
// commits the metadata with a message for the pool, and again once the kernel has the message.
// Removing takes as many per thin volume; extending takes one.
const ThinSteps = 2

// PoolOptions describes a new thin pool.
type PoolOptions struct {
	// Group and Pool must satisfy ValidName.
	Group, Pool string
	// Extents of data, at least 1.
	Extents int64
	// MetadataBytes is a multiple of the extent size.
	MetadataBytes int64
	// ChunkSize is the unit of provisioning in bytes: a multiple of 64 KiB, at most 1 GiB.
	ChunkSize int64
	// Tags are attached by the same command, before the volume becomes a pool. Each must
	// satisfy ValidTag.
	Tags []string
}

// ThinOptions describes a new thin volume.
type ThinOptions struct {
	Group, Pool, Volume string
	// Bytes is a multiple of the extent size.
	Bytes int64
	// Tags are attached by the same command. Each must satisfy ValidTag.
	Tags []string
}

// SnapshotOptions describes a new snapshot.
type SnapshotOptions struct {
	Group, Origin, Volume string
	// Tags are attached by the same command; the origin's are not copied. Each must satisfy
	// ValidTag.
	Tags []string
	// Inactive snapshots have no device, and Activate gives them none.
	Inactive bool
}

// PoolStatus is the kernel's view of a thin pool.
type PoolStatus struct {
	// MetadataUsed and MetadataTotal count blocks of 4 KiB.
	MetadataUsed, MetadataTotal int64
	// DataUsed and DataTotal count chunks.
	DataUsed, DataTotal int64
	// Failed: the pool does no I/O; the other fields are unknown.
	Failed   bool
	ReadOnly bool
	// OutOfData: writes to new blocks fail, or wait, until space is free.
	// OutOfData: writes to new blocks fail, or wait, until space is free.
	OutOfData bool
	// NeedsCheck: the pool accepts no writes before a check of its metadata (lvconvert
	// --repair).
	NeedsCheck bool
	// QueuesWhenFull: writes to a full pool wait, for a minute, instead of failing.
	QueuesWhenFull bool
}

type thinPools struct{ volumes *volumes }

func (t *thinPools) CreatePool(ctx context.Context, o PoolOptions) error {
	if err := provideTarget(thinPoolTarget); err != nil {
		return err
	}
	args, err := withTags(append([]string{
		"--yes", "--extents", strconv.FormatInt(o.Extents, 10), "--poolmetadatasize", inBytes(o.MetadataBytes), "--name", o.Pool,
	}, poolArgs(o)...), o.Tags)
	if err != nil {
		return err
	}
	return t.volumes.commands.change(ctx, o.Group, "lvcreate", append(args, o.Group)...)
}

// CreateThin implements Thin. LVM need not wipe a thin volume: its new blocks are zeroed.
func (t *thinPools) CreateThin(ctx context.Context, o ThinOptions) error {
	args, err := withTags([]string{
		"--yes", "--type", "thin", "--virtualsize", inBytes(o.Bytes), "--thinpool", o.Pool,
		"--setactivationskip", "n", "--wipesignatures", "n", "--name", o.Volume,
	}, o.Tags)
	if err != nil {
		return err
	}
	if _, err := t.volumes.messages.finish(o.Group, o.Pool); err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		if err := t.volumes.commands.change(ctx, o.Group, "lvcreate", append(args, o.Group)...); err != nil {
			return err
		}
		blank, err := isBlank(o.Group, o.Volume)
		if err != nil || blank {
			return err
		}
		if attempt == 2 {
			return fmt.Errorf("thin volume %q of volume group %q, which is new, holds data: its pool still has a volume that was removed", o.Volume, o.Group)
		}
		// LVM gave it the number of a removed volume whose removal the pool was never sent, see
		// messages, and took that volume for the new one. Removing it now sends the removal.
		if err := t.volumes.Remove(ctx, o.Group, []string{o.Volume}); err != nil {
			return fmt.Errorf("a new thin volume that holds data: %w", err)
		}
	}
}

func (t *thinPools) Snapshot(ctx context.Context, o SnapshotOptions) error {
	if err := provideTarget(snapshotTarget); err != nil {
		return err
	}
	skip := "n"
	if o.Inactive {
		skip = "y"
	}
	args, err := withTags([]string{"--yes", "--snapshot", "--setactivationskip", skip, "--name", o.Volume}, o.Tags)
	if err != nil {
		return err
	}
	if _, err := t.volumes.messages.finish(o.Group, o.Origin); err != nil {
		return err
	}
	return t.volumes.commands.change(ctx, o.Group, "lvcreate", append(args, o.Group+"/"+o.Origin)...)
}

func (t *thinPools) MakePool(ctx context.Context, o PoolOptions, metadata string) error {
	if err := provideTarget(thinPoolTarget); err != nil {
		return err
	}
	args := append([]string{"--yes", "--poolmetadata", o.Group + "/" + metadata}, poolArgs(o)...)
	return t.volumes.commands.change(ctx, o.Group, "lvconvert", append(args, o.Group+"/"+o.Pool)...)
}

// poolArgs returns the options of every pool. Discards end in the pool: while the kernel passes
// one down to the disk, it counts chunks as used that no volume has, and a commit of the pool's
// metadata records them (dm-thin, process_prepared_discard_passdown_pt1). After a power cut
// they would count for ever; thin_check 0.9 neither detects nor repairs that.
func poolArgs(o PoolOptions) []string {
	return []string{
		"--type", "thin-pool", "--poolmetadataspare", "y", "--chunksize", inBytes(o.ChunkSize), "--zero", "y", "--discards", "nopassdown",
	}
}

func (t *thinPools) ExtendPool(ctx context.Context, group, pool string, extents int64, on ...layout.Share) error {
	return t.volumes.Extend(ctx, group, pool, extents, on...)
}

func (t *thinPools) ExtendPoolMetadata(ctx context.Context, group, pool string, bytes int64, on ...layout.Share) error {
	args := []string{"--poolmetadatasize", inBytes(bytes), group + "/" + pool}
	return t.volumes.commands.change(ctx, group, "lvextend", append(args, deviceArgs(on)...)...)
}

// poolStatus asks the kernel, and also returns the device that it asked. It fails with
// ErrTimedOut while the pool writes its metadata to an unresponsive disk: the kernel does not
// answer then.
func (d *disks) poolStatus(group, pool string) (device, params string, err error) {
	type status struct{ device, params string }
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	s, err := blockdev.Do(ctx, &d.reads, group+"/"+pool, func(string) (status, error) {
		device, params, err := readPoolStatus(dmTableStatus, group, pool)
		return status{device, params}, err
	})
	return s.device, s.params, err
}

// readPoolStatus uses read to get a device's target and status. The pool's own device lies
// below the one with the pool's name, except before LVM creates the first volume. It fails with
// ErrNotFound, too, if LVM renames the device between the two reads.
func readPoolStatus(read func(device string) (kind, params string, err error), group, pool string) (device, params string, err error) {
	device = layout.DeviceName(group, pool) + "-tpool"
	kind, params, err := read(device)
	if errors.Is(err, ErrNotFound) {
		device = layout.DeviceName(group, pool)
		kind, params, err = read(device)
	}
	if err != nil {
		return "", "", err
	}
	if kind != "thin-pool" {
		return "", "", fmt.Errorf("%w: device-mapper device %s is a %q, not a thin-pool", ErrNotFound, device, kind)
	}
	return device, params, nil
}

func isBlank(group, volume string) (bool, error) {
	device := layout.DeviceName(group, volume)
	kind, params, err := dmTableStatus(device)
	if err != nil {
		return false, err
	}
	if kind != "thin" {
		return false, fmt.Errorf("device-mapper device %s is a %q, not a thin volume", device, kind)
	}
	// MAPPED_SECTORS HIGHEST_MAPPED_SECTOR
	mapped, _, ok := strings.Cut(params, " ")
	n, err := strconv.ParseUint(mapped, 10, 64)
	if !ok || err != nil {
		return false, fmt.Errorf("device-mapper device %s: thin volume's status %q", device, params)
	}
	return n == 0, nil
}

func withTags(args, tags []string) ([]string, error) {
	for _, t := range tags {
		if !ondisk.ValidTag(t) {
			return nil, fmt.Errorf("tag %q is malformed", t)
		}
		args = append(args, "--addtag", t)
	}
	return args, nil
}

func inBytes(n int64) string { return strconv.FormatInt(n, 10) + "b" }
