package lvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/devmapper"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// deviceState is how a device differs from what the metadata says.
type deviceState struct {
	// name is device-mapper's, volume LVM's.
	name, volume string
	// loaded: it has an inactive table, which was never taken into use.
	suspended, loaded bool
}

// Inconsistent implements Groups: the metadata is read from a disk, and the kernel's list
// of block devices is compared with it.
func (v *volumes) Inconsistent(group string) ([]string, error) {
	sizes, unknown := sizesOf(v.disks.Placement(group))
	found, err := listInconsistent("/sys", group, sizes, tableLoaded)
	names := make([]string, len(found))
	for i, d := range found {
		names[i] = d.volume
	}
	return names, errors.Join(err, unknown)
}

// sizesOf are those of a group's volumes, hidden ones too, in bytes. Of metadata that were read, and not
// understood, nothing is said, nor of a group that is on none of its disks. That is no error: it would not end before
// LVM writes others.
func sizesOf(p ondisk.Placement, err error) (map[string]int64, error) {
	if err != nil && !errors.Is(err, errNotUnderstood) && !errors.Is(err, errNoMetadata) {
		return nil, err
	}
	sizes := map[string]int64{}
	for name, volume := range p.Volumes {
		sizes[name] = volume.Size
	}
	return sizes, nil
}

// tableLoaded reports whether a device has an inactive table.
func tableLoaded(name string) (bool, error) {
	d, err := dmStatus(name)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return d.Loaded, err
}

// listInconsistent finds what is inconsistent among the devices that have a table in use: one
// that has none is given the right one when it is activated. A size that is not among sizes is not compared.
func listInconsistent(sys, group string, sizes map[string]int64, loaded func(name string) (bool, error)) ([]deviceState, error) {
	mappings, err := filepath.Glob(filepath.Join(sys, "block", "dm-*", "dm"))
	if err != nil {
		return nil, err
	}
	prefix := layout.DeviceName(group, "")
	var found []deviceState
	for _, dir := range mappings {
		name, err := attribute(dir, "name")
		if err != nil {
			return nil, err
		}
		rest, ours := strings.CutPrefix(name, prefix)
		// Two hyphens are one within the name of another group.
		if !ours || strings.HasPrefix(rest, "-") {
			continue
		}
		suspended, err := attribute(dir, "suspended")
		if err != nil {
			return nil, err
		}
		sectors, err := attribute(filepath.Dir(dir), "size")
		if err != nil {
			return nil, err
		}
		d := deviceState{name: name, volume: strings.ReplaceAll(rest, "--", "-"), suspended: suspended == "1"}
		if d.loaded, err = loaded(name); err != nil {
			return nil, err
		}
		// A pool's own device lies below the one that has the pool's name.
		want, known := sizes[strings.TrimSuffix(d.volume, "-tpool")]
		is, err := strconv.ParseInt(sectors, 10, 64)
		if d.suspended || d.loaded || known && err == nil && is*sector != want {
			found = append(found, d)
		}
	}
	return found, nil
}

// attribute reads a file of a device in sysfs; empty when the device is gone since.
func attribute(dir, file string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return "", nil
	}
	return strings.TrimSpace(string(b)), err
}

// Repair implements Groups.
//
// LVM loads the tables of a change before it commits the change, and takes them
// into use afterwards. A table that is loaded stays: LVM does not load the one
// that is in use already, and resumes the device, which takes the other one into
// use, whether its change was ever committed or not. So the loaded tables go first;
// then LVM makes everything what the metadata says.
func (v *volumes) Repair(ctx context.Context, group string, names []string) error {
	suspended, err := v.clearTablesWithin(ctx, group, names)
	if err != nil {
		return err
	}
	if suspended {
		if err := v.Activate(ctx, group, names); err != nil {
			return err
		}
	}
	found, err := v.Inconsistent(group)
	if err != nil {
		return err
	}
	var args []string
	for _, name := range names {
		if slices.ContainsFunc(found, func(device string) bool { return layout.IsOf(device, name) }) {
			args = append(args, group+"/"+name)
		}
	}
	if len(args) == 0 {
		return nil
	}
	if err := v.commands.change(ctx, group, "lvchange", append([]string{"--refresh"}, args...)...); err != nil {
		return err
	}
	return v.reactivate(ctx, group, names)
}

// reactivate gives new devices to those of the volumes that are still not what the metadata
// says: Linux 7.2 keeps the size of a RAID device that was given a shorter table. A volume
// that is open keeps its device, and is repaired when Repair is called after it was closed.
func (v *volumes) reactivate(ctx context.Context, group string, names []string) error {
	found, err := v.Inconsistent(group)
	if err != nil {
		return err
	}
	var closed []string
	for _, name := range names {
		if !slices.Contains(found, name) {
			continue
		}
		if d, err := dmStatus(layout.DeviceName(group, name)); err == nil && d.OpenCount == 0 {
			closed = append(closed, group+"/"+name)
		}
	}
	if len(closed) == 0 {
		return nil
	}
	for _, activate := range []string{"n", "y"} {
		if err := v.commands.change(ctx, group, "lvchange", append([]string{"--activate", activate}, closed...)...); err != nil {
			return err
		}
	}
	return nil
}

// clearTablesWithin is clearTables with the timeout of a command: a disk that does not
// answer holds up the caller that clears a table that writes to it.
func (v *volumes) clearTablesWithin(ctx context.Context, group string, names []string) (suspended bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, v.commands.runner.Timeout)
	defer cancel()
	type result struct {
		suspended bool
		err       error
	}
	done := make(chan result, 1)
	go func() {
		suspended, err := v.clearTables(group, names)
		done <- result{suspended, err}
	}()
	select {
	case r := <-done:
		return r.suspended, r.err
	case <-ctx.Done():
		return false, fmt.Errorf("clearing inactive tables of volume group %q: %w", group, blockdev.TimedOut(ctx))
	}
}

// clearTables clears the inactive tables of the volumes' devices, resumes the components
// of the volumes, and reports whether any device was suspended. A command under way
// loads tables, too: ErrBusy while there is one.
//
// What lies below comes first: a table of a RAID volume writes to its components when
// it is cleared, and reads from them when it is loaded, and a process that asks for that
// while they are suspended waits in the kernel for ever. A component that runs does no
// harm: nothing but the volume above writes to it.
//
// A thin pool that is suspended holds its volumes, once for each of their tables,
// loaded ones too, and lets them go, once for each, when it is resumed. A volume of
// which a table is cleared in between is held for ever. So pools are resumed before
// that; the volumes stay suspended.
func (v *volumes) clearTables(group string, names []string) (suspended bool, err error) {
	unlock, err := lockGroup(LockDir, group)
	if err != nil {
		return false, err
	}
	defer unlock()
	// Sizes do not matter here: what is suspended is resumed though the metadata cannot be read.
	found, err := listInconsistent("/sys", group, nil, tableLoaded)
	if err != nil {
		return false, err
	}
	slices.SortStableFunc(found, func(a, b deviceState) int { return layout.Level(a.name) - layout.Level(b.name) })
	for _, d := range found {
		if !slices.ContainsFunc(names, func(name string) bool { return layout.IsOf(d.volume, name) }) {
			continue
		}
		suspended = suspended || d.suspended
		err := error(nil)
		if d.loaded {
			err = devmapper.Clear(d.name)
		}
		if err == nil && d.suspended && layout.Level(d.name) < 0 {
			_, err = devmapper.Resume(d.name)
		}
		if err != nil && !errors.Is(err, devmapper.ErrNotFound) {
			return suspended, fromKernel(err)
		}
	}
	return suspended, nil
}
