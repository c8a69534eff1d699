package capacity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/workloop"
)

const (
	taintWorkers = 8
	// taintRetryMin and taintRetryMax limit the pauses between checks of a node that is not ready.
	// An event usually comes first.
	taintRetryMin = 100 * time.Millisecond
	taintRetryMax = 5 * time.Second
)

// Untainter removes the start-up taint, with any of its keys, values and effects, from nodes that
// are ready for Pods with volumes. A node is ready when
//
//   - its agent is connected and has reported;
//   - the objects for every StorageClass of ours are up to date: with the capacity, or
//     absent if the node lacks the device class;
//   - it has the topology label, which the scheduler needs to match the objects, and
//     which the kubelet sets when the node plugin has registered.
//
// It never adds the taint: the component that creates the nodes does.
type Untainter struct {
	*cluster.Cluster
	publisher *Publisher
	nodes     *workloop.Loop[string] // by name
	keys      []string

	mu      sync.Mutex
	waiting map[string]wait
}

type wait struct {
	why   string
	since time.Time
}

// errStillTainted makes the loop retry.
var errStillTainted = errors.New("the node is not ready for Pods with volumes")

// NewUntainter returns an Untainter; Run runs it. keys are additional keys of the taint, besides
// names.TaintAgentNotReady, names.TaintAutoscaler and names.TaintReadiness.
func NewUntainter(p *Publisher, keys []string) *Untainter {
	keys = slices.Concat([]string{names.TaintAgentNotReady, names.TaintAutoscaler, names.TaintReadiness}, keys)
	u := &Untainter{Cluster: p.Cluster, publisher: p, keys: keys, waiting: map[string]wait{}}
	u.nodes = workloop.New(workloop.Options[string]{
		Name: "taints", Parallel: taintWorkers, RetryMin: taintRetryMin, RetryMax: taintRetryMax,
		Work: func(ctx context.Context, node string) (time.Duration, error) {
			if !u.sync(ctx, node) {
				return 0, errStillTainted
			}
			return 0, nil
		},
	})
	return u
}

// Run works until ctx is done. The caches must have synced.
func (u *Untainter) Run(ctx context.Context) error {
	defer u.publisher.Metrics.taintedSince.Set(0)
	changed := func(node *v1.Node) { u.nodes.Add(node.Name) }
	stop, err := cluster.Watch(
		cluster.OnChange(u.Nodes, changed, changed),
		cluster.OnChange(u.Capacities, func(c *storagev1.CSIStorageCapacity) {
			if node := TopologyNode(c); node != "" {
				u.nodes.Add(node)
			}
		}, nil),
	)
	if err != nil {
		return err
	}
	defer stop()
	u.nodes.Run(ctx)
	return nil
}

// NodeChanged rechecks a node that connected or reported.
func (u *Untainter) NodeChanged(node string) { u.nodes.Add(node) }

// sync checks one node, and reports whether it is done.
func (u *Untainter) sync(ctx context.Context, name string) (done bool) {
	node, err := u.NodeLister.Get(name)
	if err != nil || !slices.ContainsFunc(node.Spec.Taints, u.agentNotReady) {
		u.note(name, "")
		return true
	}
	if why := u.unready(ctx, node); why != nil {
		u.note(name, why.Error())
		return false
	}
	if err := u.untaint(ctx, node); err != nil {
		if ctx.Err() == nil {
			u.note(name, "the taint could not be removed: "+err.Error())
		}
		return false
	}
	u.Log.Info("start-up taint removed", "node", name)
	u.note(name, "")
	return true
}

// note records why a node is still tainted, "" if it is not, and logs each reason once.
func (u *Untainter) note(node, why string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	before, waits := u.waiting[node]
	switch {
	case why == "":
		delete(u.waiting, node)
	case !waits:
		u.waiting[node] = wait{why, u.Now()}
	default:
		u.waiting[node] = wait{why, before.since}
	}
	if why != "" && before.why != why {
		u.Log.Info("start-up taint stays", "node", node, "reason", why)
	}
	if waits == (why != "") {
		return // the set of waiting nodes is unchanged
	}
	oldest := 0.
	for _, w := range u.waiting {
		if since := float64(w.since.UnixMilli()) / 1000; oldest == 0 || since < oldest {
			oldest = since
		}
	}
	u.publisher.Metrics.taintedSince.Set(oldest)
}

// unready returns nil if the node is ready for Pods with volumes, otherwise why not.
func (u *Untainter) unready(ctx context.Context, node *v1.Node) error {
	view, ok := u.Fleet.View(node.Name)
	switch {
	case !ok || !view.Connected:
		return errors.New("its agent is not connected")
	case !view.Reported():
		return errors.New("its agent has not reported yet")
	case node.Labels[names.TopologyNode] != node.Name:
		return fmt.Errorf("it does not have the label %s=%s: the node plugin is not registered", names.TopologyNode, node.Name)
	}
	for _, class := range u.OurClasses() {
		if err := u.publisher.published(ctx, Key{Node: node.Name, Class: class.Name}); err != nil {
			return fmt.Errorf("its capacity in StorageClass %s is not published: %w", class.Name, err)
		}
	}
	return nil
}

func (u *Untainter) agentNotReady(t v1.Taint) bool { return slices.Contains(u.keys, t.Key) }

// CheckTaintKey rejects invalid taint keys, and the domains of Kubernetes except those of
// names.TaintAutoscaler and names.TaintReadiness.
func CheckTaintKey(key string) error {
	const want = "want a domain of yours, a slash and a name, such as example.com/storage-not-ready"
	domain, _, found := strings.Cut(key, "/")
	if problems := validation.IsQualifiedName(key); len(problems) > 0 || !found {
		return fmt.Errorf("%q is no key of a taint with a domain, %s", key, want)
	}
	for _, known := range []string{names.TaintAutoscaler, names.TaintReadiness} {
		if allowed, _, _ := strings.Cut(known, "/"); domain == allowed {
			return nil
		}
	}
	for _, theirs := range []string{"kubernetes.io", "k8s.io"} {
		if domain == theirs || strings.HasSuffix(domain, "."+theirs) {
			return fmt.Errorf("%q is Kubernetes' own, %s", key, want)
		}
	}
	return nil
}

// untaint removes nothing but the taint. If the cached node is outdated, the patch fails and is
// retried.
func (u *Untainter) untaint(ctx context.Context, node *v1.Node) error {
	_, err := cluster.Apply(ctx, u.Client.CoreV1().Nodes(), node, cluster.Exact, func(n *v1.Node) { n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, u.agentNotReady) })
	if apierrors.IsNotFound(err) {
		return nil
	}
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("the controller may not patch nodes, see deploy/components/startup-taint: %w", err)
	}
	return err
}
