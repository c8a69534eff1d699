package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/command"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/quantity"
)

const (
	// smallCheckMemory is what a check gets at first, in bytes. It is enough for most:
	// smallChecks of them are at work at once on the node, heldSmallChecks hold memory, with
	// those that wait for their disks, and sameSmallChecks of these lie on the same disks.
	smallCheckMemory = 32 << 20
	smallChecks      = 4
	heldSmallChecks  = 8
	sameSmallChecks  = 2
	// DefaultCheckMemory is what a check gets that needs more, in bytes: largeChecks,
	// heldLargeChecks and sameLargeChecks are of these.
	DefaultCheckMemory = 128 << 20
	largeChecks        = 1
	heldLargeChecks    = 2
	sameLargeChecks    = 1
)

// checker runs the checks of file systems within a bounded amount of memory: they share
// that of the plugin's container, and the kernel ends all of a container that takes too
// much. It is safe for concurrent use.
type checker struct {
	fileSystems  FileSystems
	devices      *devices
	memory       int64
	small, large *command.Places
}

// newChecker makes a checker that gives a check so many bytes at most; zero means
// DefaultCheckMemory.
func newChecker(fs FileSystems, devices *devices, memory int64) *checker {
	return &checker{
		fileSystems: fs, devices: devices, memory: cmp.Or(memory, DefaultCheckMemory),
		small: command.NewPlaces(smallChecks, heldSmallChecks, sameSmallChecks),
		large: command.NewPlaces(largeChecks, heldLargeChecks, sameLargeChecks),
	}
}

// check repairs the file system of a volume. Its error matches filesystem.ErrMemory when that
// takes more memory than there is for it.
func (c *checker) check(ctx context.Context, v *lvmdv1.Volume) error {
	err := c.within(ctx, c.small, min(smallCheckMemory, c.memory), v)
	if errors.Is(err, filesystem.ErrMemory) && c.memory > smallCheckMemory {
		err = c.within(ctx, c.large, c.memory, v)
	}
	if errors.Is(err, filesystem.ErrMemory) {
		return fmt.Errorf("%w; allowed are %s: raise --check-memory of carve-node and the memory limit of its container by twice as much, or check the file system by hand on the node", err, quantity.Bytes(c.memory))
	}
	return err
}

func (c *checker) within(ctx context.Context, places *command.Places, memory int64, v *lvmdv1.Volume) error {
	// An lvmd of an earlier version does not name the disks.
	place, release, err := places.Take(ctx, "", cmp.Or(v.GetDisks(), v.GetVgName()))
	if err != nil {
		return fmt.Errorf("wait for the checks of other file systems: %w", err)
	}
	// The wait may be long: the volume may be gone by then, and its device's number another's.
	device, err := c.devices.node(v)
	if err != nil {
		release()
		return err
	}
	err = c.fileSystems.Check(ctx, device, useOf(v).Type, filesystem.CheckOptions{Memory: memory, Waiting: place.Waiting})
	var killed *command.KilledError
	if errors.As(err, &killed) && killed.Stuck {
		// It holds its memory until it is gone.
		go func() {
			<-killed.Gone
			release()
		}()
		return err
	}
	release()
	return err
}
