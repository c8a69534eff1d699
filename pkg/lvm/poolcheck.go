package lvm

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/command"
	"github.com/carve-csi/carve/pkg/lvm/layout"
)

const (
	// checkProgram checks the metadata of thin pools, for LVM too.
	checkProgram = "thin_check"
	// poolHeader covers the fields that show whether the pool was ever used and needs a check.
	poolHeader = 64
	// poolNeedsCheck is in the flags, behind the checksum (drivers/md/dm-thin-metadata.c,
	// struct thin_disk_superblock).
	poolNeedsCheck  = 1
	uncheckedConfig = `global { thin_check_executable="" }`
)

// BeginPoolCheck implements Thin. It activates the component with the pool's metadata, which
// LVM does read-only, and only while the pool is inactive. LVM does not activate the pool until
// the component is gone.
func (t *thinPools) BeginPoolCheck(ctx context.Context, group, pool string) error {
	c := t.volumes.commands
	devices, err := c.disks.require(group)
	if err != nil {
		return err
	}
	if err := c.disks.confirm(group); err != nil {
		return err
	}
	// If this fails, LVM reports the obstacle.
	_ = dropComponents(t.volumes.disks, group, []string{pool})
	_ = provideTarget(raidTarget)
	// After this command, an lvm shell would go on to activate components.
	err = c.exec(ctx, devices, "lvchange", "--yes", "--activate", "y", group+"/"+metadataOf(pool))
	if err != nil {
		dropAllComponents(ctx, t.volumes.disks, group, []string{pool})
	}
	return err
}

func (t *thinPools) CheckPool(ctx context.Context, group, pool string) (enough bool, err error) {
	defer dropAllComponents(ctx, t.volumes.disks, group, []string{pool})
	runner := t.volumes.commands.runner
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(runner.PoolTimeout, runner.Timeout))
	defer cancel()
	enough, err = checkMetadata(ctx, &t.volumes.disks.reads, "/dev/mapper/"+layout.DeviceName(group, metadataOf(pool)))
	if err != nil {
		return false, fmt.Errorf("check of the metadata of thin pool %s/%s: %w", group, pool, err)
	}
	return enough, nil
}

func metadataOf(pool string) string { return pool + "_tmeta" }

// checkMetadata checks a thin pool's metadata as LVM does before it activates the pool. That is
// not enough for a pool with the flag needs_check, which only LVM clears.
func checkMetadata(ctx context.Context, reads *blockdev.Guard, device string) (enough bool, err error) {
	header, err := blockdev.Do(ctx, reads, device, func(device string) ([]byte, error) {
		f, err := os.Open(device)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		header := make([]byte, poolHeader)
		_, err = io.ReadFull(f, header)
		return header, err
	})
	switch {
	case err != nil:
		return false, err
	case bytes.Equal(header, make([]byte, poolHeader)):
		return true, nil // The kernel has never used the pool.
	case binary.LittleEndian.Uint32(header[4:])&poolNeedsCheck != 0:
		return false, nil
	}
	result, err := command.Run(ctx, command.Command{
		Program: checkProgram, Args: []string{"-q", device}, Env: []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"},
		MaxOutput: maxStderr, Device: device,
	})
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, exec.ErrNotFound):
		return false, nil // LVM decides what to do without it.
	case errors.Is(err, command.ErrHangs), ctx.Err() != nil:
		return false, fmt.Errorf("%s: %w: %w", checkProgram, ErrTimedOut, err)
	}
	return false, fmt.Errorf("%s (lvconvert --repair repairs them): %s", checkProgram, withWords(err.Error(), string(result.Output)))
}
