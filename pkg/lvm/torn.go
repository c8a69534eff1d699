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

	"github.com/carve-csi/carve/pkg/devmapper"
)

// IsOf tells whether a device's name, as Torn tells it, is that of a volume or of
// a part of it.
func IsOf(name, volume string) bool {
	part, ok := strings.CutPrefix(name, volume)
	return ok && (part == "" || part[0] == '_' || part[0] == '-')
}

// Torn implements Groups: the metadata is read from a disk, and the kernel's list
// of block devices is held against it.
func (h *Host) Torn(group string) ([]string, error) {
	torn, err := h.torn(group)
	names := make([]string, len(torn))
	for i, d := range torn {
		names[i] = d.volume
	}
	return names, err
}

// tornDevice is a device that is not what the metadata says.
type tornDevice struct {
	// name is device-mapper's, volume LVM's.
	name, volume string
	// loaded: it has a table that was never taken into use.
	suspended, loaded bool
}

func (h *Host) torn(group string) ([]tornDevice, error) {
	sizes := map[string]int64{}
	// Of metadata that cannot be read, or understood, nothing is said.
	if p, err := h.Placement(group); err == nil {
		for name, lie := range p.Volumes {
			sizes[name] = lie.Size
		}
	}
	return listTorn("/sys", group, sizes, tableLoaded)
}

// tableLoaded tells whether a device has a table that waits to be taken into use.
func tableLoaded(name string) bool {
	d, err := dmStatus(name)
	return err == nil && d.Loaded
}

// listTorn finds what is torn among the devices that have a table in use: one that
// has none is given the right one when it is activated. sizes are those of the
// group's volumes, hidden ones too, in bytes.
func listTorn(sys, group string, sizes map[string]int64, loaded func(name string) bool) ([]tornDevice, error) {
	mappings, err := filepath.Glob(filepath.Join(sys, "block", "dm-*", "dm"))
	if err != nil {
		return nil, err
	}
	prefix := dmName(group, "")
	var torn []tornDevice
	for _, dir := range mappings {
		name, err := sysWord(dir, "name")
		if errors.Is(err, os.ErrNotExist) {
			continue // It is gone since.
		}
		if err != nil {
			return nil, err
		}
		rest, ours := strings.CutPrefix(name, prefix)
		// Two hyphens are one within the name of another group.
		if !ours || strings.HasPrefix(rest, "-") {
			continue
		}
		suspended, err := sysWord(dir, "suspended")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		d := tornDevice{name: name, volume: strings.ReplaceAll(rest, "--", "-"), suspended: suspended == "1", loaded: loaded(name)}
		// A pool's own device lies below the one that has the pool's name.
		want, known := sizes[strings.TrimSuffix(d.volume, "-tpool")]
		sectors, err := sysWord(filepath.Dir(dir), "size")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		is, err := strconv.ParseInt(sectors, 10, 64)
		if d.suspended || d.loaded || known && err == nil && is*sector != want {
			torn = append(torn, d)
		}
	}
	return torn, nil
}

// sysWord reads a small file of the kernel's.
func sysWord(dir, file string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, file))
	return strings.TrimSpace(string(b)), err
}

// Mend implements Groups.
//
// LVM loads the tables of a change before it commits the change, and takes them
// into use afterwards. A table that is loaded stays: LVM does not load the one
// that is in use already, and resumes the device, which takes the other one into
// use, whether its change was ever committed or not. So the loaded tables go first;
// then LVM makes everything what the metadata says.
func (h *Host) Mend(ctx context.Context, group string, volumes []string) error {
	suspended, err := h.disarmWithin(ctx, group, volumes)
	if err != nil {
		return err
	}
	if suspended {
		if err := h.Activate(ctx, group, volumes); err != nil {
			return err
		}
	}
	torn, err := h.Torn(group)
	if err != nil {
		return err
	}
	var args []string
	for _, v := range volumes {
		if slices.ContainsFunc(torn, func(name string) bool { return IsOf(name, v) }) {
			args = append(args, group+"/"+v)
		}
	}
	if len(args) == 0 {
		return nil
	}
	if err := h.change(ctx, []string{group}, "lvchange", append([]string{"--refresh"}, args...)...); err != nil {
		return err
	}
	return h.reactivate(ctx, group, volumes)
}

// reactivate gives new devices to those of the volumes that are still not what the metadata
// says: Linux 7.2 keeps the size of a RAID device that was given a shorter table. A volume
// that is open keeps its device, and is repaired when Mend is called after it was closed.
func (h *Host) reactivate(ctx context.Context, group string, volumes []string) error {
	torn, err := h.Torn(group)
	if err != nil {
		return err
	}
	var closed []string
	for _, v := range volumes {
		if !slices.Contains(torn, v) {
			continue
		}
		if d, err := dmStatus(dmName(group, v)); err == nil && d.OpenCount == 0 {
			closed = append(closed, group+"/"+v)
		}
	}
	if len(closed) == 0 {
		return nil
	}
	for _, activate := range []string{"n", "y"} {
		if err := h.change(ctx, []string{group}, "lvchange", append([]string{"--activate", activate}, closed...)...); err != nil {
			return err
		}
	}
	return nil
}

// disarmWithin is disarm for who can wait no longer than for a command: a disk that
// does not answer holds up whoever drops a table that writes to it.
func (h *Host) disarmWithin(ctx context.Context, group string, volumes []string) (suspended bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, h.runner.Timeout)
	defer cancel()
	type result struct {
		suspended bool
		err       error
	}
	done := make(chan result, 1)
	go func() {
		suspended, err := h.disarm(group, volumes)
		done <- result{suspended, err}
	}()
	select {
	case r := <-done:
		return r.suspended, r.err
	case <-ctx.Done():
		return false, fmt.Errorf("dropping tables of volume group %q that are not in use: %w", group, timedOut(ctx.Err()))
	}
}

// disarm drops the tables that are loaded for the volumes' devices and not in use,
// resumes the parts of the volumes, and tells whether any device was suspended. A
// command under way loads tables, too: ErrBusy while there is one.
//
// What lies below comes first: a table of a RAID volume writes to its parts when it
// is dropped, and reads from them when it is loaded, and whoever asks for that while
// they are suspended waits in the kernel for ever. A part that runs harms nobody:
// nothing but the volume above writes to it.
//
// A thin pool that is suspended holds its volumes, once for each of their tables,
// loaded ones too, and lets them go, once for each, when it is resumed. A volume of
// which a table is dropped in between is held for ever. So pools are resumed before
// that; the volumes stay suspended.
func (h *Host) disarm(group string, volumes []string) (suspended bool, err error) {
	unlock, err := lockGroup(LockDir, group)
	if err != nil {
		return false, err
	}
	defer unlock()
	torn, err := h.torn(group)
	if err != nil {
		return false, err
	}
	slices.SortStableFunc(torn, func(a, b tornDevice) int { return level(a.name) - level(b.name) })
	for _, d := range torn {
		if !slices.ContainsFunc(volumes, func(v string) bool { return IsOf(d.volume, v) }) {
			continue
		}
		suspended = suspended || d.suspended
		err := error(nil)
		if d.loaded {
			err = devmapper.Clear(d.name)
		}
		if err == nil && d.suspended && level(d.name) < 0 {
			_, err = devmapper.Resume(d.name)
		}
		if err != nil && !errors.Is(err, devmapper.ErrNotFound) {
			return suspended, fromKernel(err)
		}
	}
	return suspended, nil
}

// level orders devices by what lies on what, from below. It is 0 for volumes, -1 for
// thin pools, and less for what a volume or a pool is made of: -3 for an image of
// the mirror that holds a pool's data.
func level(name string) int {
	if whole := component.FindStringSubmatch(name); whole != nil {
		return min(-1, level(whole[1])) - 1
	}
	// Two hyphens are one within a volume's name.
	if strings.HasSuffix(name, "-tpool") && !strings.HasSuffix(name, "--tpool") {
		return -1
	}
	return 0
}
