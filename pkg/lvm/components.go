package lvm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// dropComponents removes the devices of components whose volume has no
// device, left by a killed activation. LVM activates no volume with an active
// component, and never removes such a component itself. Components of other
// volumes stay: an administrator activates them to repair a volume.
//
// Commands under way create components first, too, so it takes LVM's lock of
// the group. It returns ErrBusy if the lock is taken, or if a process has a
// component open. Under the lock, the metadata that says which cache belongs
// to which volume cannot change.
func dropComponents(d *disks, group string, volumes []string) error {
	unlock, err := lockGroup(LockDir, group)
	if err != nil {
		return err
	}
	defer unlock()
	for {
		if removed, err := dropUppermost(d, group, volumes); !removed {
			return err
		}
	}
}

func dropUppermost(d *disks, group string, volumes []string) (removed bool, err error) {
	// dmList is the only list that includes devices without a table.
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
		// A stale node does no harm before another device gets the name.
		_ = dropStaleNodes(group)
	}
	return removed, errors.Join(errs...)
}

// dropAllComponents retries dropComponents after a failed command: the
// command's processes may take a moment to end and hold components open until
// then. It ignores cancellation of ctx, which may be why the command failed.
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
