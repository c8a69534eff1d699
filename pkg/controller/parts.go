package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Parts of the controller that can be left to a standard CSI sidecar, which then
// works by the CSI Controller service: values of Options.Disable.
const (
	// PartProvisioning makes and deletes volumes: external-provisioner.
	PartProvisioning = "provisioning"
	// PartCapacity publishes how much room there is: external-provisioner with
	// --enable-capacity.
	PartCapacity = "capacity"
	// PartResizing grows volumes: external-resizer.
	PartResizing = "resizing"
	// PartSnapshotting takes and deletes snapshots: external-snapshotter.
	PartSnapshotting = "snapshotting"
)

// Parts returns all that can be left to sidecars.
func Parts() []string {
	return []string{PartProvisioning, PartCapacity, PartResizing, PartSnapshotting}
}

// checkParts refuses what cannot be meant.
func (o *Options) checkParts() error {
	for _, part := range o.Disable {
		if !slices.Contains(Parts(), part) {
			return fmt.Errorf("--disable: %q is not allowed, allowed: %s", part, strings.Join(Parts(), ", "))
		}
	}
	switch {
	case len(o.Disable) > 0 && o.CSISocket == "":
		return errors.New("--disable: nobody could do it instead without --csi-socket")
	case o.disabled(PartCapacity) && o.RemoveStartupTaint:
		return fmt.Errorf("--disable: %s is not allowed with --remove-startup-taint, which waits for what is published", PartCapacity)
	}
	return nil
}

func (o *Options) disabled(part string) bool { return slices.Contains(o.Disable, part) }

// assemble makes what acts, without beginning anything.
func (c *Controller) assemble() *acting {
	publisher := newPublisher(c.core)
	publisher.withdraw = c.o.disabled(PartCapacity)
	a := &acting{publisher: publisher}
	busy := func(string) bool { return false }
	if !c.o.disabled(PartProvisioning) {
		a.provisioner = newProvisioner(c.core, c.o.CompleteBinding, publisher)
		a.deleter = newDeleter(c.core, c.o.CompleteBinding)
		busy = a.provisioner.busy
	}
	a.auditor = newAuditor(c.core, c.o.RemoveOrphans, c.o.OrphanGrace, busy)
	if c.o.RemoveStartupTaint {
		a.untainter = newUntainter(c.core, publisher)
	}
	return a
}

// start begins what acts. It ends with ctx.
func (c *Controller) start(ctx context.Context, group *errgroup.Group, a *acting) {
	group.Go(func() error { return a.publisher.run(ctx) })
	if a.provisioner != nil {
		group.Go(func() error { return a.provisioner.run(ctx) })
		group.Go(func() error { return a.provisioner.protector.run(ctx) })
		group.Go(func() error { return a.deleter.run(ctx) })
	}
	group.Go(func() error { return a.auditor.run(ctx) })
	group.Go(func() error { return newReleaser(c.core).run(ctx) })
	if a.untainter != nil {
		group.Go(func() error { return a.untainter.run(ctx) })
	}
	if !c.o.disabled(PartResizing) {
		group.Go(func() error { return runResizer(ctx, c.core, c.all) })
	}
	if c.o.Snapshots != nil && !c.o.disabled(PartSnapshotting) {
		group.Go(func() error { return c.runSnapshotter(ctx) })
	}
}
