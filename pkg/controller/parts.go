package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/carve-csi/carve/pkg/controller/audit"
	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/controller/pin"
	"github.com/carve-csi/carve/pkg/controller/provision"
	"github.com/carve-csi/carve/pkg/controller/reclaim"
	"github.com/carve-csi/carve/pkg/controller/reservations"
)

// Parts of the controller that can be left to a standard CSI sidecar, which then
// works by the CSI Controller service: values of Options.Disable.
const (
	// PartProvisioning makes and deletes volumes: external-provisioner.
	PartProvisioning = "provisioning"
	// PartCapacity publishes how much free space there is: external-provisioner with
	// --enable-capacity.
	PartCapacity = "capacity"
	// PartResizing grows volumes, and changes their attributes: external-resizer.
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
	for _, key := range o.StartupTaintKeys {
		if err := capacity.CheckTaintKey(key); err != nil {
			return fmt.Errorf("--startup-taint-key: %w", err)
		}
	}
	switch {
	case len(o.StartupTaintKeys) > 0 && !o.RemoveStartupTaint:
		return errors.New("--startup-taint-key: nothing removes the taint without --remove-startup-taint")
	case len(o.Disable) > 0 && o.CSISocket == "":
		return errors.New("--disable: no sidecar could do it instead without --csi-socket")
	case o.disabled(PartCapacity) && o.RemoveStartupTaint:
		return fmt.Errorf("--disable: %s is not allowed with --remove-startup-taint, which waits for what is published", PartCapacity)
	}
	return nil
}

func (o *Options) disabled(part string) bool { return slices.Contains(o.Disable, part) }

// assemble makes what acts, without beginning anything.
func (c *Controller) assemble() *acting {
	publisher := capacity.New(c.core.Cluster, capacity.Options{
		Namespace: c.o.Namespace, Owner: c.core.owner, Ledger: c.core.ledger, Available: c.core.available,
		TemplateLabel: c.o.TemplateLabel, Withdraw: c.o.disabled(PartCapacity), Metrics: c.core.metrics.capacity,
	})
	a := &acting{publisher: publisher}
	busy := func(string) bool { return false }
	if !c.o.disabled(PartProvisioning) {
		a.reporter = reservations.New(c.core.Cluster, c.core.ledger)
		a.provisioner = provision.New(c.core.Cluster, provision.Options{
			Snapshots: c.o.Snapshots, Ledger: c.core.ledger, Available: c.core.available,
			FreeChanged: a.freeChanged, CapacityShown: publisher.Shown,
			IDs: c.core.ids, Identity: c.core.identity, Parallel: c.core.workers, SlowCreate: c.core.slowCreate, CreateTimeout: c.core.createTimeout, PodLag: c.core.podLag, Metrics: c.core.metrics.provision,
		})
		a.deleter = reclaim.NewDeleter(c.core.Cluster, reclaim.Options{Parallel: c.core.workers, Metrics: c.core.metrics.reclaim})
		busy = a.provisioner.Busy
	}
	a.auditor = audit.New(c.core.Cluster, audit.Options{RemoveOrphans: c.o.RemoveOrphans, Grace: c.o.OrphanGrace, Interval: c.o.AuditInterval, Since: c.core.Now(), Busy: busy, Metrics: c.core.metrics.audit})
	if c.o.RemoveStartupTaint {
		a.untainter = capacity.NewUntainter(publisher, c.o.StartupTaintKeys)
	}
	if c.o.NodeConditions {
		a.conditions = audit.NewNodeConditions(c.core.Cluster, c.core.available, c.core.conditionPause)
	}
	return a
}

// freeChanged is called with a node on which reservations were made or ended.
func (a *acting) freeChanged(node string) {
	a.publisher.NodeChanged(node)
	if a.reporter != nil {
		a.reporter.NodeChanged(node)
	}
}

// start begins what acts. It ends with ctx.
func (c *Controller) start(ctx context.Context, group *errgroup.Group, a *acting) {
	group.Go(func() error { return a.publisher.Run(ctx) })
	if a.provisioner != nil {
		group.Go(func() error { return a.provisioner.Run(ctx) })
		group.Go(func() error { return a.deleter.Run(ctx) })
		group.Go(func() error { return a.reporter.Run(ctx) })
	}
	group.Go(func() error { return a.auditor.Run(ctx) })
	group.Go(func() error { return reclaim.NewReleaser(c.core.Cluster).Run(ctx) })
	group.Go(func() error {
		return pin.New(c.core.Cluster, pin.Options{Grace: c.core.pinGrace, Lasting: c.core.shortFor, Disks: c.core.ledger, Metrics: c.core.metrics.pin}).Run(ctx)
	})
	if a.untainter != nil {
		group.Go(func() error { return a.untainter.Run(ctx) })
	}
	if a.conditions != nil {
		group.Go(func() error { return a.conditions.Run(ctx) })
	}
	if !c.o.disabled(PartResizing) {
		group.Go(func() error { return runResizer(ctx, c.core, c.all) })
		group.Go(func() error { return runModifier(ctx, c.core, c.all) })
	}
	if c.o.Snapshots != nil && !c.o.disabled(PartSnapshotting) {
		group.Go(func() error { return c.runSnapshotter(ctx) })
	}
}
