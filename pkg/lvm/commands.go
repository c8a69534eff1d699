package lvm

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/carve-csi/carve/pkg/blockdev"
)

// commands runs LVM's commands, confined to the disks that they are about, and makes
// durable what they wrote. It is safe for concurrent use.
type commands struct {
	runner *Runner
	disks  *disks
	// flushes bounds the wait for disks, flush flushes one.
	flushes blockdev.Guard
	flush   func(device string) error
}

// exec runs a command that looks at the devices and at no others.
func (c *commands) exec(ctx context.Context, devices []string, command string, args ...string) error {
	devices, err := c.disks.examined(devices)
	if err != nil {
		return err
	}
	_, err = c.runner.Run(ctx, command, append([]string{"--config", lvmConfig(devices)}, args...)...)
	return err
}

// run is exec that returns when what the command did is durable.
func (c *commands) run(ctx context.Context, devices []string, command string, args ...string) error {
	if err := c.exec(ctx, devices, command, args...); err != nil {
		return err
	}
	return c.durable(ctx, devices)
}

// change runs a command that changes volumes of a group, and returns when what it did is
// durable.
func (c *commands) change(ctx context.Context, group, command string, args ...string) error {
	return c.changeWith(ctx, "", group, command, args...)
}

// changeWith is change with further configuration for LVM.
func (c *commands) changeWith(ctx context.Context, config, group, command string, args ...string) error {
	return c.changeHolding(ctx, nil, config, group, command, args...)
}

// changeHolding is changeWith for a caller that has LVM's lock of the group, or nil.
func (c *commands) changeHolding(ctx context.Context, lock *os.File, config, group, command string, args ...string) error {
	devices, err := c.disks.require(group)
	if err != nil {
		return err
	}
	if err := c.disks.confirm(group); err != nil {
		return err
	}
	seen, err := c.disks.examined(devices)
	if err != nil {
		return fmt.Errorf("volume group %q: %w", group, err)
	}
	args = append([]string{"--config", lvmConfig(seen) + config}, args...)
	before := linksOf(group)
	if lock == nil {
		_, err = c.runner.RunFor(ctx, group, command, args...)
	} else {
		_, err = c.runner.runHolding(ctx, lock, command, args...)
	}
	if err != nil {
		// It may have acted all the same: the Scan that must follow flushes, and
		// drops nodes of what is gone. Links that it replaced may be missing.
		return errors.Join(err, before.restore())
	}
	return c.durable(ctx, devices)
}

// durable returns when what a command wrote is durable. LVM writes its metadata
// past the page cache and leaves it at that: in a disk with a write cache, as most
// have one, a commit can be lost with the power until the disk is flushed.
func (c *commands) durable(ctx context.Context, devices []string) error {
	ctx, cancel := context.WithTimeout(ctx, c.runner.Timeout)
	defer cancel()
	err := c.flushes.Each(ctx, devices, c.flush)
	if err != nil && !errors.Is(err, ErrTimedOut) {
		err = fmt.Errorf("%w: %w", ErrDeviceMissing, err)
	}
	if err != nil {
		return fmt.Errorf("flushing the metadata: %w", err)
	}
	return nil
}

// report reads the groups as they are seen on the devices, or on all devices when there are
// none. All groups are asked for: a name on the command line that does not exist would be an error.
//
// Nothing is taken from the report of a command that failed, though its JSON is whole: LVM leaves out a group
// that it could not read, which is not gone and may have the name of another one, and of a section
// the parts that come after one that failed. On its own devices, each group is read without the others.
func (c *commands) report(ctx context.Context, groups, devices []string) ([]Group, error) {
	var configuration string
	var err error
	if len(devices) == 0 {
		configuration, err = c.disks.everywhere()
	} else if devices, err = c.disks.examined(devices); err == nil {
		configuration = lvmConfig(devices)
	}
	if err != nil {
		return nil, err
	}
	args := []string{
		"--config", configuration,
		"--reportformat", "json", "--units", "b", "--nosuffix",
		"--foreign", "--shared", // A group that LVM hides is not one that is gone.
	}
	for _, r := range reportFields {
		args = append(args, "--configreport", r.section, "-o", r.fields)
	}
	out, err := c.runner.Run(ctx, "fullreport", args...)
	if err != nil {
		return nil, err
	}
	return parseFullReport(out, c.disks.pins(groups))
}

// scan reads the groups from the devices, or from all devices when there are none, and
// remembers where they are.
func (c *commands) scan(ctx context.Context, groups, devices []string) ([]Group, error) {
	found, err := c.report(ctx, groups, devices)
	if err != nil {
		return nil, err
	}
	found = c.disks.pick(groups, found)
	for _, g := range found {
		// A path may lead to another device since it was chosen.
		if err := c.disks.confirmLayers(&g); err != nil {
			return nil, err
		}
		for i := range g.Devices {
			g.Devices[i].DAX = !g.Devices[i].Missing && blockdev.HasDAX(g.Devices[i].Path)
		}
	}
	c.disks.remember(groups, found)
	// A node that cannot be dropped is no reason not to report what the group holds.
	_ = dropStaleNodes(groups...)
	return found, nil
}

// volumeArgs names volumes of a group as LVM's commands take them.
func volumeArgs(group string, volumes []string) []string {
	args := make([]string, len(volumes))
	for i, v := range volumes {
		args[i] = group + "/" + v
	}
	return args
}
