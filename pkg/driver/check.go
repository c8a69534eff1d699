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
	// A check first gets smallCheckMemory bytes, which is enough for most. On
	// the node smallChecks of them run at once; heldSmallChecks hold memory,
	// including those that wait for their disks; at most sameSmallChecks of
	// these share disks.
	smallCheckMemory = 32 << 20
	smallChecks      = 4
	heldSmallChecks  = 8
	sameSmallChecks  = 2
	// DefaultCheckMemory is the larger limit, in bytes, for a check that ran
	// out of the small one. The three limits below correspond to those above.
	DefaultCheckMemory = 128 << 20
	largeChecks        = 1
	heldLargeChecks    = 2
	sameLargeChecks    = 1
)

// checker bounds the memory of all checks together: the kernel kills the
// plugin's whole container when it exceeds its limit. It is safe for concurrent
// use.
type checker struct {
	fileSystems  FileSystems
	devices      *devices
	memory       int64
	small, large *command.Places
}

// newChecker takes zero memory as DefaultCheckMemory.
func newChecker(fs FileSystems, devices *devices, memory int64) *checker {
	return &checker{
		fileSystems: fs, devices: devices, memory: cmp.Or(memory, DefaultCheckMemory),
		small: command.NewPlaces(smallChecks, heldSmallChecks, sameSmallChecks),
		large: command.NewPlaces(largeChecks, heldLargeChecks, sameLargeChecks),
	}
}

// check's error matches filesystem.ErrMemory if the repair needs more memory.
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
	// An older lvmd does not report the disks.
	place, release, err := places.Take(ctx, "", cmp.Or(v.GetDisks(), v.GetVgName()))
	if err != nil {
		return fmt.Errorf("wait for the checks of other file systems: %w", err)
	}
	// The wait may be long: the device number may be another volume's by now.
	device, err := c.devices.node(v)
	if err != nil {
		release()
		return err
	}
	err = c.fileSystems.Check(ctx, device, useOf(v).Type, filesystem.CheckOptions{Memory: memory, Waiting: place.Waiting})
	var killed *command.KilledError
	if errors.As(err, &killed) && killed.Stuck {
		// The process holds its memory until it exits.
		go func() {
			<-killed.Gone
			release()
		}()
		return err
	}
	release()
	return err
}
