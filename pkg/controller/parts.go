package controller

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/informers"

	"github.com/carve-csi/carve/pkg/controller/audit"
	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/controller/pin"
	"github.com/carve-csi/carve/pkg/controller/provision"
	"github.com/carve-csi/carve/pkg/controller/reclaim"
)

// checkTaintKeys rejects keys that nothing removes, and keys of Kubernetes' own taints.
func (o *Options) checkTaintKeys() error {
	for _, key := range o.StartupTaintKeys {
		if err := capacity.CheckTaintKey(key); err != nil {
			return fmt.Errorf("--startup-taint-key: %w", err)
		}
	}
	if len(o.StartupTaintKeys) > 0 && !o.RemoveStartupTaint {
		return errors.New("--startup-taint-key: nothing removes the taint without --remove-startup-taint")
	}
	return nil
}

func (c *Controller) assemble() *acting {
	publisher := capacity.New(c.core.Cluster, capacity.Options{
		Namespace: c.o.Namespace, Owner: c.core.owner, Ledger: c.core.ledger, Available: c.core.available,
		TemplateLabel: c.o.TemplateLabel, Metrics: c.core.metrics.capacity,
	})
	a := &acting{publisher: publisher, classes: informers.NewSharedInformerFactory(c.core.Client, 0)}
	a.provisioner = provision.New(c.core.Cluster, provision.Options{
		Snapshots: c.o.Snapshots, AttributesClasses: a.classes.Storage().V1().VolumeAttributesClasses().TypedInformer(), Ledger: c.core.ledger, Available: c.core.available,
		FreeChanged: publisher.NodeChanged, CapacityShown: publisher.Shown,
		IDs: c.core.ids, Identity: c.core.identity, Parallel: c.core.workers, SlowCreate: c.core.slowCreate, CreateTimeout: c.core.createTimeout, PodLag: c.core.podLag, Metrics: c.core.metrics.provision,
	})
	a.deleter = reclaim.NewDeleter(c.core.Cluster, reclaim.Options{Parallel: c.core.workers, Metrics: c.core.metrics.reclaim})
	a.auditor = audit.New(c.core.Cluster, audit.Options{RemoveOrphans: c.o.RemoveOrphans, Grace: c.o.OrphanGrace, Interval: c.o.AuditInterval, Since: c.core.Now(), Busy: a.provisioner.Busy, Metrics: c.core.metrics.audit})
	if c.o.RemoveStartupTaint {
		a.untainter = capacity.NewUntainter(publisher, c.o.StartupTaintKeys)
	}
	if c.o.NodeConditions {
		a.conditions = audit.NewNodeConditions(c.core.Cluster, c.core.available, c.core.conditionPause)
	}
	return a
}

func (c *Controller) start(ctx context.Context, group *errgroup.Group, a *acting) {
	group.Go(func() error { return a.publisher.Run(ctx) })
	group.Go(func() error { return a.provisioner.Run(ctx) })
	group.Go(func() error { return a.deleter.Run(ctx) })
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
	group.Go(func() error { return runResizer(ctx, c.core, c.all) })
	group.Go(func() error { return runModifier(ctx, c.core, c.all, a.classes) })
	if c.o.Snapshots != nil {
		group.Go(func() error { return c.runSnapshotter(ctx) })
	}
}
