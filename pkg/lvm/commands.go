package lvm

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/carve-csi/carve/pkg/blockdev"
)

// commands confines LVM commands to the devices concerned, and flushes the disks that they
// wrote. It is safe for concurrent use.
type commands struct {
	runner  *Runner
	disks   *disks
	flushes blockdev.Guard
	flush   func(device string) error
}

// exec runs a command that sees only the given devices.
func (c *commands) exec(ctx context.Context, devices []string, command string, args ...string) error {
	devices, err := c.disks.examined(devices)
	if err != nil {
		return err
	}
	_, err = c.runner.Run(ctx, command, append([]string{"--config", lvmConfig(devices)}, args...)...)
	return err
}

// run also makes the command's writes durable.
func (c *commands) run(ctx context.Context, devices []string, command string, args ...string) error {
	if err := c.exec(ctx, devices, command, args...); err != nil {
		return err
	}
	return c.durable(ctx, devices)
}

// change is run for volumes of a group.
func (c *commands) change(ctx context.Context, group, command string, args ...string) error {
	return c.changeWith(ctx, "", group, command, args...)
}

func (c *commands) changeWith(ctx context.Context, config, group, command string, args ...string) error {
	return c.changeHolding(ctx, nil, config, group, command, args...)
}

// changeHolding is changeWith for a caller that holds LVM's lock of the
// group. lock may be nil.
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
		// The command may have taken effect all the same, and removed links
		// that it was replacing. The Scan that must follow flushes, and
		// removes stale nodes.
		return errors.Join(err, before.restore())
	}
	return c.durable(ctx, devices)
}

// durable flushes the devices. LVM writes metadata past the page cache but
// does not flush, so a power cut could lose a commit that is in a disk's
// write cache.
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

// report reads the groups from the given devices, or from all devices if devices is empty. It
// asks for all groups, because LVM fails if a named group does not exist.
//
// It ignores the report of a failed command even if its JSON is complete: LVM omits groups that
// it could not read, and the parts of a section after one that failed. An omitted group is not
// gone, and may share its name with another one. Confined to its own devices, each group is
// read without the others.
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
		"--foreign", "--shared", // Otherwise a group that LVM hides would seem gone.
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

// scan is report that remembers where the groups are.
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
	// Report the group even if a stale node cannot be removed.
	_ = dropStaleNodes(groups...)
	return found, nil
}

func volumeArgs(group string, volumes []string) []string {
	args := make([]string, len(volumes))
	for i, v := range volumes {
		args[i] = group + "/" + v
	}
	return args
}
