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

// Thin is what a daemon needs of thin pools, snapshots and copies. It is part of Groups, and the
// same rules hold. Thin volumes are extended and removed as others are; they
// take nothing of the group's extents, only their pool does.
type Thin interface {
	// CreatePool makes an active thin pool that zeroes new blocks and fails
	// writes when it is full, with a spare for the repair of its metadata.
	CreatePool(ctx context.Context, o PoolOptions) error

	// CreateThin makes an active thin volume. It reads as zeroes, if its pool
	// zeroes new blocks. It raises the group's sequence number by ThinSteps.
	CreateThin(ctx context.Context, o ThinOptions) error

	// Snapshot makes a thin volume with the contents that another one of the
	// same pool has at this moment; a file system that is mounted there is
	// frozen for it. It raises the group's sequence number by ThinSteps.
	// ErrNotFound when there is no such origin.
	Snapshot(ctx context.Context, o SnapshotOptions) error

	// MakePool makes such a pool of two volumes, of any layout, whose contents are lost: its
	// data of the volume that has the pool's name, and its metadata of another one.
	// o.Extents, o.MetadataBytes and o.Tags are not looked at. See lvmthin(7).
	MakePool(ctx context.Context, o PoolOptions, metadata string) error

	// BeginPoolCheck has CheckPool see the metadata of a thin pool that has no device. It takes a moment.
	// Until CheckPool ends, nothing activates the pool, also after a crash: ActivatePool ends that.
	BeginPoolCheck(ctx context.Context, group, pool string) error

	// CheckPool checks the metadata of a thin pool after BeginPoolCheck. It may take hours, in
	// which the group can be changed. When that is not enough, because only LVM can do all that the pool
	// needs, there is no error, and ActivatePool must check.
	CheckPool(ctx context.Context, group, pool string) (enough bool, err error)

	// ActivatePool is Activate for one thin pool. Unless it was checked a moment ago, LVM checks its
	// metadata, for which the command has a longer deadline. It may take hours, in which LVM answers
	// nothing of the group.
	ActivatePool(ctx context.Context, group, pool string, checked bool) error

	// ExtendPool grows a pool's data to the given number of extents in all. on, unless empty,
	// is where the growth lies.
	ExtendPool(ctx context.Context, group, pool string, extents int64, on ...layout.Share) error

	// ExtendPoolMetadata grows a pool's metadata to the given number of bytes,
	// a multiple of the extent size, in all, and the spare for its repair with it. on,
	// unless empty, is where the growth lies.
	ExtendPoolMetadata(ctx context.Context, group, pool string, bytes int64, on ...layout.Share) error

	// Untag takes tags off volumes that have them. It raises the group's sequence number by
	// one for each of the volumes.
	Untag(ctx context.Context, group string, volumes []string, tags ...string) error

	// Tag puts a tag on volumes. It raises the group's sequence number by one for each of
	// them.
	Tag(ctx context.Context, group string, volumes []string, tag string) error

	// PoolStatus asks the kernel how full an active pool is, without a command
	// or a disk access. ErrNotFound when the pool is not active, ErrTimedOut when the kernel does not answer.
	PoolStatus(group, pool string) (PoolStatus, error)
}

// ThinSteps is by how much making a thin volume or a snapshot raises the
// group's sequence number: LVM commits the metadata with a message for the
// pool, and again once the kernel has it. Removing thin volumes takes as many
// for each of them. Extending one takes a single step.
const ThinSteps = 2

// PoolOptions says what thin pool to make.
type PoolOptions struct {
	// Group and Pool name what is made. Both must satisfy ValidName.
	Group, Pool string
	// Extents is the size of its data, at least 1.
	Extents int64
	// MetadataBytes is the size of its metadata, a multiple of the extent size.
	MetadataBytes int64
	// ChunkSize is the unit of provisioning in bytes: a multiple of 64 KiB, at
	// most 1 GiB.
	ChunkSize int64
	// Tags are attached by the same command, before anything else is done with
	// what becomes the pool. Each must satisfy ValidTag.
	Tags []string
}

// ThinOptions says what thin volume to make.
type ThinOptions struct {
	// Group, Pool and Volume name where it goes and what is made.
	Group, Pool, Volume string
	// Bytes is its virtual size, a multiple of the extent size.
	Bytes int64
	// Tags are attached by the same command. Each must satisfy ValidTag.
	Tags []string
}

// SnapshotOptions says what to take a snapshot of.
type SnapshotOptions struct {
	// Group, Origin and Volume name what it is taken of and what is made.
	Group, Origin, Volume string
	// Tags are attached by the same command; those of the origin are not taken
	// over. Each must satisfy ValidTag.
	Tags []string
	// Inactive snapshots have no device, and Activate gives them none.
	Inactive bool
}

// PoolStatus is what the kernel says of a thin pool.
type PoolStatus struct {
	// MetadataUsed and MetadataTotal count blocks of 4 KiB.
	MetadataUsed, MetadataTotal int64
	// DataUsed and DataTotal count the pool's chunks.
	DataUsed, DataTotal int64
	// Failed: the pool answers no more I/O, and nothing else is known.
	Failed bool
	// ReadOnly: the metadata cannot be changed.
	ReadOnly bool
	// OutOfData: writes to new blocks fail, or wait, until there is free space.
	OutOfData bool
	// NeedsCheck: the metadata must be checked (lvconvert --repair) before the
	// pool can be written again.
	NeedsCheck bool
	// QueuesWhenFull: writes wait for free space, for a minute, instead of failing.
	QueuesWhenFull bool
}

// thinPools makes and grows thin pools, and makes the volumes in them.
type thinPools struct{ volumes *volumes }

// CreatePool implements Thin.
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

// CreateThin implements Thin. LVM does not look into thin volumes: where new
// blocks are zeroed, there is nothing to find.
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
		// LVM gave it the number of a volume that the pool was never sent the removal of,
		// see messages, and took that for the new one. Now the removal is sent.
		if err := t.volumes.Remove(ctx, o.Group, []string{o.Volume}); err != nil {
			return fmt.Errorf("a new thin volume that holds data: %w", err)
		}
	}
}

// Snapshot implements Thin.
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

// MakePool implements Thin.
func (t *thinPools) MakePool(ctx context.Context, o PoolOptions, metadata string) error {
	if err := provideTarget(thinPoolTarget); err != nil {
		return err
	}
	args := append([]string{"--yes", "--poolmetadata", o.Group + "/" + metadata}, poolArgs(o)...)
	return t.volumes.commands.change(ctx, o.Group, "lvconvert", append(args, o.Group+"/"+o.Pool)...)
}

// poolArgs are the options of every pool. Discards end in the pool: while the kernel passes one
// down to the disk, it counts the chunks as used that no volume has any more, and writes that
// down when it commits the pool's metadata (dm-thin, process_prepared_discard_passdown_pt1). After
// a power cut they would count for ever. thin_check 0.9 neither sees that nor repairs it.
func poolArgs(o PoolOptions) []string {
	return []string{
		"--type", "thin-pool", "--poolmetadataspare", "y", "--chunksize", inBytes(o.ChunkSize), "--zero", "y", "--discards", "nopassdown",
	}
}

// ExtendPool implements Thin.
func (t *thinPools) ExtendPool(ctx context.Context, group, pool string, extents int64, on ...layout.Share) error {
	return t.volumes.Extend(ctx, group, pool, extents, on...)
}

// ExtendPoolMetadata implements Thin.
func (t *thinPools) ExtendPoolMetadata(ctx context.Context, group, pool string, bytes int64, on ...layout.Share) error {
	args := []string{"--poolmetadatasize", inBytes(bytes), group + "/" + pool}
	return t.volumes.commands.change(ctx, group, "lvextend", append(args, deviceArgs(on)...)...)
}

// poolStatus is what the kernel says of a pool, and of which device. While a pool writes its metadata to a
// disk that does not answer, the kernel does not answer either: it fails with ErrTimedOut.
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

// readPoolStatus is poolStatus without a deadline; read returns a device's target and status. The pool has a
// device of its own, below that of the pool's name, except while LVM has made no volume in it yet. It fails
// with ErrNotFound, too, if LVM renames the device between the two reads.
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

// isBlank reports whether a thin volume has no block of its pool: it reads as zeroes.
func isBlank(group, volume string) (bool, error) {
	device := layout.DeviceName(group, volume)
	kind, params, err := dmTableStatus(device)
	if err != nil {
		return false, err
	}
	if kind != "thin" {
		return false, fmt.Errorf("device-mapper device %s is a %q, not a thin volume", device, kind)
	}
	// MAPPED_SECTORS HIGHEST_MAPPED_SECTOR, or why there are none.
	mapped, _, ok := strings.Cut(params, " ")
	n, err := strconv.ParseUint(mapped, 10, 64)
	if !ok || err != nil {
		return false, fmt.Errorf("device-mapper device %s: thin volume's status %q", device, params)
	}
	return n == 0, nil
}

// withTags appends the options that attach tags.
func withTags(args, tags []string) ([]string, error) {
	for _, t := range tags {
		if !ondisk.ValidTag(t) {
			return nil, fmt.Errorf("tag %q is malformed", t)
		}
		args = append(args, "--addtag", t)
	}
	return args, nil
}

// inBytes is a size as LVM's options take it.
func inBytes(n int64) string { return strconv.FormatInt(n, 10) + "b" }
