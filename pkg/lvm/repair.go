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

type deviceState struct {
	// name is device-mapper's, volume LVM's.
	name, volume string
	// loaded means with an inactive table.
	suspended, loaded bool
}

func (v *volumes) Inconsistent(group string) ([]string, error) {
	sizes, unknown := sizesOf(v.disks.Placement(group))
	found, err := listInconsistent("/sys", group, sizes, tableLoaded)
	names := make([]string, len(found))
	for i, d := range found {
		names[i] = d.volume
	}
	return names, errors.Join(err, unknown)
}

// sizesOf returns the sizes of a group's volumes, hidden ones included, in bytes. Metadata that
// cannot be parsed, or is on none of the group's disks, gives no sizes and no error: the error
// would last until LVM writes new metadata.
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

func tableLoaded(name string) (bool, error) {
	d, err := dmStatus(name)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return d.Loaded, err
}

// listInconsistent ignores devices without a live table: activation gives them the right one.
// It does not compare a size that is absent from sizes.
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
		// Two hyphens stand for one within another group's name.
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
		// A pool's own device lies below the one with the pool's name.
		want, known := sizes[strings.TrimSuffix(d.volume, "-tpool")]
		is, err := strconv.ParseInt(sectors, 10, 64)
		if d.suspended || d.loaded || known && err == nil && is*sector != want {
			found = append(found, d)
		}
	}
	return found, nil
}

// attribute returns "" if the device has gone.
func attribute(dir, file string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return "", nil
	}
	return strings.TrimSpace(string(b)), err
}

// Repair implements Groups.
//
// LVM loads a change's tables, commits the change, and then makes the tables live. If a loaded
// table stays, LVM does not reload the one that is already live, and its resume makes the
// loaded one live even if the change was never committed. So loaded tables go first.
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

// reactivate gives new devices to closed volumes that a refresh did not repair: Linux 7.2 keeps
// the size of a RAID device whose new table is shorter.
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

// clearTablesWithin is clearTables with a command's timeout: clearing a table that writes to an
// unresponsive disk blocks.
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

// clearTables clears inactive tables of the volumes' devices, resumes the volumes' components,
// and reports whether any device was suspended. It returns ErrBusy while a command holds LVM's
// lock: the command loads tables, too.
//
// It goes from the bottom up. A RAID table writes to its components when cleared and reads them
// when loaded; while they are suspended, a process that does either waits in the kernel for
// ever. A running component does no harm: only the volume above writes to it.
//
// A suspended thin pool holds its volumes, once for each of their tables, loaded ones included,
// and releases them as often when it is resumed. Clearing a volume's table in between leaves
// the volume held for ever. So pools are resumed first; the volumes stay suspended.
func (v *volumes) clearTables(group string, names []string) (suspended bool, err error) {
	unlock, err := lockGroup(LockDir, group)
	if err != nil {
		return false, err
	}
	defer unlock()
	// Without sizes, it resumes suspended devices even if the metadata is unreadable.
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
