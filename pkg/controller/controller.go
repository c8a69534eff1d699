package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"time"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/audit"
	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/provision"
	"github.com/carve-csi/carve/pkg/controller/reclaim"
	"github.com/carve-csi/carve/pkg/controller/trust"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/scheduler"
	"github.com/carve-csi/carve/pkg/uplink"
)

// Options configure a Controller. All but the booleans and those with a stated default are
// required.
type Options struct {
	// Client must not limit its rate: the API server's priority and fairness does.
	Client kubernetes.Interface
	// Snapshots may be nil: then the controller serves no snapshots.
	Snapshots snapshotclient.Interface
	Namespace string
	// UplinkListen is the address that nodes dial.
	UplinkListen string
	Identity     string
	// LeaderElect makes replicas elect one to act. Without it this one acts.
	LeaderElect bool
	// RemoveOrphans makes the audit remove orphans instead of only reporting them.
	RemoveOrphans bool
	// OrphanGrace is the time for which no object may name an orphan: at least
	// LeastOrphanGrace; zero means DefaultOrphanGrace.
	OrphanGrace time.Duration
	// AuditInterval is the time between audits; zero means a minute.
	AuditInterval time.Duration
	// TemplateLabel is the label whose value identifies a kind of node to the Cluster
	// Autoscaler; empty publishes nothing for it.
	TemplateLabel string
	// RemoveStartupTaint makes the leader remove names.TaintAgentNotReady from ready nodes. It
	// needs the right to patch nodes.
	RemoveStartupTaint bool
	// StartupTaintKeys are further keys of that taint.
	StartupTaintKeys []string
	// NodeConditions makes the leader keep a condition of each device class on its Node. It
	// needs the right to patch nodes/status.
	NodeConditions bool
	Registerer     prometheus.Registerer
	Log            *slog.Logger
}

// Default and minimum of Options.OrphanGrace.
const (
	DefaultOrphanGrace = audit.DefaultOrphanGrace
	LeastOrphanGrace   = audit.LeastOrphanGrace
)

// Controller is one replica.
type Controller struct {
	o        Options
	core     *core
	all, own informers.SharedInformerFactory

	agents    *trust.Agents
	lease     *lease
	listening atomic.Bool
	readiness readiness

	// acting is nil while this replica does not lead.
	acting atomic.Pointer[acting]
}

type acting struct {
	provisioner *provision.Provisioner
	deleter     *reclaim.Deleter
	publisher   *capacity.Publisher
	auditor     *audit.Auditor
	untainter   *capacity.Untainter             // nil unless Options.RemoveStartupTaint
	conditions  *audit.NodeConditions           // nil unless Options.NodeConditions
	classes     informers.SharedInformerFactory // of VolumeAttributesClasses
}

// New returns a replica for Run.
func New(o Options) (*Controller, error) {
	if o.OrphanGrace == 0 {
		o.OrphanGrace = audit.DefaultOrphanGrace
	}
	switch {
	case o.Client == nil:
		return nil, errors.New("no client for the API server")
	case o.Namespace == "":
		return nil, errors.New("no namespace")
	case o.OrphanGrace < audit.LeastOrphanGrace:
		return nil, fmt.Errorf("--orphan-grace: %v is too short, at least %v are needed: a PersistentVolume is written after its volume is made", o.OrphanGrace, audit.LeastOrphanGrace)
	}
	if err := o.checkTaintKeys(); err != nil {
		return nil, err
	}
	c := &Controller{o: o, lease: newLease(o)}
	c.all = informers.NewSharedInformerFactory(o.Client, 0)
	c.own = informers.NewSharedInformerFactoryWithOptions(o.Client, 0, informers.WithNamespace(o.Namespace),
		informers.WithTweakListOptions(func(l *metav1.ListOptions) { l.LabelSelector = names.LabelManagedBy + "=" + names.ManagedBy }))
	nodes := fleet.New(fleet.Options{OnChange: c.nodeChanged, OnForget: c.nodeForgotten, Log: o.Log,
		OnCall: func(method string, err error, took time.Duration) { c.core.metrics.called(method, err, took) }})
	known, err := cluster.New(o.Client, nodes, c.all, c.own, o.Log)
	if err != nil {
		return nil, err
	}
	c.core = &core{
		Cluster: known, identity: provision.NewIdentity(time.Now()),
		ledger: scheduler.NewLedger(time.Now), ids: cluster.NewIDs(known),
	}
	if c.agents, err = trust.NewAgents(o.Client, o.Namespace, names.NodeServiceAccount); err != nil {
		return nil, err
	}
	c.core.Losses.MayHaveAgent = c.agents.MayBeOn
	c.core.available = c.newAvailability()
	c.core.metrics = newMetrics(o.Registerer,
		func() float64 { return float64(c.core.Fleet.Connected()) },
		func() float64 { return float64(c.core.Fleet.Refused()) },
		func() float64 { return float64(c.core.ledger.Reservations()) },
		c.heldBack)
	if c.core.owner, err = capacity.NewOwner(o.Client, o.Namespace); err != nil {
		return nil, err
	}
	return c, nil
}

// Run accepts nodes and watches the cluster at once, and acts while it leads, until ctx is
// done.
func (c *Controller) Run(ctx context.Context) error {
	defer c.core.Fleet.Close()
	recorder, stopEvents := cluster.NewRecorder(c.o.Client)
	defer stopEvents()
	c.core.Recorder = recorder
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.o.UplinkListen)
	if err != nil {
		return fmt.Errorf("listen for uplinks: %w", err)
	}
	defer lis.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer c.all.Shutdown()
	defer c.own.Shutdown()
	defer c.core.owner.Shutdown()
	defer cancel()
	c.all.Start(ctx.Done())
	c.own.Start(ctx.Done())
	c.core.owner.Start(ctx.Done())

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { c.agents.Run(ctx); return nil })
	store := trust.NewStore(c.o.Client, c.o.Namespace, names.UplinkService+"."+c.o.Namespace+".svc", c.o.Log)
	trusted := make(chan struct{})
	group.Go(func() error { store.Run(ctx, trusted); return nil })
	group.Go(func() error {
		c.findClusterID(ctx)
		select {
		case <-trusted:
		case <-ctx.Done():
			return nil
		}
		// Close the uplinks after the release of the lease: that takes seconds for thousands
		// of them.
		serving, stop := context.WithCancel(context.WithoutCancel(ctx))
		defer stop()
		group.Go(func() error { return c.serveUplink(serving, lis, store) })
		return c.lead(ctx)
	})
	group.Go(func() error { c.forgetGoneNodes(ctx); return nil })
	return group.Wait()
}

// findClusterID reads the installation's id: by custom, the UID of the namespace kube-system.
func (c *Controller) findClusterID(ctx context.Context) {
	_ = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
		defer cancel()
		ns, err := c.o.Client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		if err != nil {
			c.o.Log.Warn("the cluster's id cannot be read, trying on", "error", err)
			return false, nil
		}
		c.core.ID = string(ns.UID)
		return true, nil
	})
}

const agentsTimeout = 10 * time.Second

func (c *Controller) serveUplink(ctx context.Context, lis net.Listener, store *trust.Store) error {
	// After a restart all nodes dial at once, and any Pod may, too: the server reserves places
	// for known addresses.
	waiting, stop := context.WithTimeout(ctx, agentsTimeout)
	defer stop()
	if !cache.WaitForCacheSync(waiting.Done(), c.agents.Synced) && ctx.Err() == nil {
		c.o.Log.Warn("the addresses of the node agents are not known yet, no places are kept for nodes that dial")
	}
	server := uplink.NewServer(uplink.ServerConfig{
		GetCertificate: store.GetCertificate,
		Authenticate:   trust.NewAuthenticator(c.o.Client, c.o.Namespace, names.NodeServiceAccount).Authenticate,
		OnSession:      func(s *uplink.Session) { c.core.Fleet.Add(s) },
		Known:          c.agents.Known,
		OnReject:       func(reason string) { c.core.metrics.uplinkRejections.WithLabelValues(reason).Inc() },
		Log:            c.o.Log,
	})
	c.openUplink()
	defer c.listening.Store(false)
	return server.Serve(ctx, lis)
}

// nodeChanged updates the ledger first: all that follows must see free space and volumes of
// one instant.
func (c *Controller) nodeChanged(view *fleet.View) {
	if view.Reported() {
		c.core.ledger.Report(view.Node, reportOf(view))
	}
	if view.Connected {
		c.core.available.NoteConnected(view.Node)
	} else {
		c.core.available.NoteAway(view.Node)
	}
	a := c.acting.Load()
	if a == nil {
		return
	}
	if view.Refused != "" {
		c.core.NodeEvent(view.Node, v1.EventTypeWarning, cluster.ReasonReportRefused, view.Refused+
			"; nothing is provisioned on the node until its report can be taken in. Look for what made so many volumes there, or for an agent that is not Carve's")
	}
	a.publisher.NodeChanged(view.Node)
	if a.untainter != nil {
		a.untainter.NodeChanged(view.Node)
	}
	if a.conditions != nil {
		a.conditions.NodeChanged(view.Node)
	}
	if view.Connected {
		a.provisioner.NodeChanged(view.Node)
		a.deleter.NodeChanged(view.Node)
	}
}

// nodeForgotten runs in order with nodeChanged, so it never drops the report of a node that
// came back.
func (c *Controller) nodeForgotten(node string) {
	c.core.ledger.Forget(node)
	c.core.available.Forget(node)
}

func reportOf(view *fleet.View) scheduler.NodeReport {
	report := scheduler.NodeReport{Epoch: view.Epoch, Generation: view.Generation, Volumes: make(map[string]struct{}, len(view.ByName))}
	for _, class := range view.Classes {
		group := class.GetVgUuid()
		if group == "" {
			group = "class " + class.GetName() // shares with no other
		}
		if class.GetType() == "thin" {
			group += " pool of " + class.GetName() // no two classes share a pool
		}
		report.Classes = append(report.Classes, scheduler.ClassReport{
			Name: class.GetName(), Default: class.GetDefault(), Group: group,
			Total: class.GetTotalBytes(), Available: class.GetAvailableBytes(), MaximumVolume: class.GetMaximumVolumeSizeBytes(),
			MinimumVolume: class.GetMinimumVolumeSizeBytes(), AllocationUnit: class.GetAllocationUnitBytes(),
			UnitCost: class.GetUnitCostBytes(), VolumeCost: class.GetVolumeCostBytes(),
		})
	}
	for name := range view.ByName {
		report.Volumes[name] = struct{}{}
	}
	return report
}

// forgetGoneNodes drops the memory of nodes that are gone, and the capacity published for
// nodes that no longer run an agent.
func (c *Controller) forgetGoneNodes(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if c.core.Synced() {
			c.forgetNodes(ctx)
		}
	}, time.Minute)
}

// heldBack excludes nodes that no longer run an agent: nothing is published for them.
func (c *Controller) heldBack(cause string) float64 {
	nodes := c.core.available.HeldBack(cause)
	if cause == cluster.CauseAway {
		nodes = slices.DeleteFunc(nodes, c.core.Retired)
	}
	return float64(len(nodes))
}

func (c *Controller) forgetNodes(ctx context.Context) {
	for _, view := range c.core.Fleet.Views() {
		if view.Connected {
			continue
		}
		if gone, err := c.core.NodeGone(ctx, view.Node); err == nil && gone {
			c.core.Fleet.Forget(view.Node)
		}
	}
	// A create that fails just after its node was forgotten counts against the node again.
	for _, node := range c.core.available.Nodes() {
		if _, connectedOnce := c.core.Fleet.View(node); connectedOnce {
			continue // The fleet forgets it.
		}
		if gone, err := c.core.NodeGone(ctx, node); err == nil && gone {
			c.core.available.Forget(node)
		}
	}
	if a := c.acting.Load(); a != nil {
		a.publisher.RemoveRetired()
	}
	c.core.ledger.Expire() // Reservations of an earlier term remain.
	c.core.Losses.Agentless.Retain(c.core.Now(), func(node string) bool {
		_, err := c.core.NodeLister.Get(node)
		return err == nil
	})
}
