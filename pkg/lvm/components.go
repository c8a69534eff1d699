package lvm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// dropComponents removes the devices of components that nothing lies on: an activation
// that was killed made them and not the volume. LVM activates no volume of which a
// component is active, and never removes such a component. Components of other volumes
// stay: an administrator activates them to repair the volume. Which cache is a component of which volume is
// in the metadata, which nothing changes meanwhile.
//
// A command under way makes components first, too: while there is one, nothing is done. ErrBusy
// then, and when a process has a component open.
func dropComponents(d *disks, group string, volumes []string) error {
	unlock, err := lockGroup(LockDir, group)
	if err != nil {
		return err
	}
	defer unlock()
	for {
		// What lies below a component is one of its own once that is gone.
		if removed, err := dropUppermost(d, group, volumes); !removed {
			return err
		}
	}
}

// dropUppermost is dropComponents for those on which no component lies, and reports whether it removed any.
func dropUppermost(d *disks, group string, volumes []string) (removed bool, err error) {
	// Those without a table, which are in no other list, are in this one.
	devices, err := dmList()
	errs := []error{err}
	names := make([]string, len(devices))
	for i, device := range devices {
		names[i] = device.Name
	}
	var caches map[string]string
	if layout.HaveCache(names, group) {
		caches, err = committed(d, group, ondisk.Caches)
		errs = append(errs, err)
	}
	for _, name := range layout.Leftovers(names, group, volumes, caches) {
		device, err := dmStatus(name)
		switch {
		case err == nil && device.OpenCount == 0:
			err = dmRemove(name)
			removed = removed || err == nil
		case err == nil:
			err = fmt.Errorf("device %q: %w", name, ErrBusy)
		}
		if !errors.Is(err, ErrNotFound) {
			errs = append(errs, err)
		}
	}
	if removed {
		// A node that stays does no harm before another device has the name.
		_ = dropStaleNodes(group)
	}
	return removed, errors.Join(errs...)
}

// dropAllComponents is dropComponents after a command failed: what it started may take a moment
// to be gone, too, and has them open until then. The command may have failed because ctx ended, so
// only its values count here.
func dropAllComponents(ctx context.Context, d *disks, group string, volumes []string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reapGrace)
	defer cancel()
	tick := time.NewTicker(reapGrace / 20)
	defer tick.Stop()
	for dropComponents(d, group, volumes) != nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
