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
	// taintWorkers is how many nodes are worked on at once.
	taintWorkers = 8
	// taintRetryMin and taintRetryMax are the pauses between two looks at a
	// node whose agent is not ready. What usually ends the wait is an event.
	taintRetryMin = 100 * time.Millisecond
	taintRetryMax = 5 * time.Second
)

// Untainter removes the start-up taint, under any of its keys and of whatever value and effect, from nodes that
// are ready for Pods with volumes. A node is, when
//
//   - its agent is connected and has reported;
//   - for every StorageClass of ours there is published what should be: the
//     capacity, or nothing where the node does not have the device class;
//   - it has the topology label, by which alone the scheduler can match what
//     is published to the node, and which the kubelet sets when the node plugin
//     has registered.
//
// It adds the taint to no node: that is for the component that makes the nodes.
type Untainter struct {
	*cluster.Cluster
	publisher *Publisher
	nodes     *workloop.Loop[string] // by name
	keys      []string

	mu sync.Mutex
	// waiting are the nodes that still carry the taint, by name.
	waiting map[string]wait
}

// wait is that of one node for its taint to go.
type wait struct {
	why   string
	since time.Time
}

// errStillTainted has a node looked at again.
var errStillTainted = errors.New("the node is not ready for Pods with volumes")

// NewUntainter makes an untainter that waits for what a publisher publishes. The keys are those of the taint beside
// names.TaintAgentNotReady, names.TaintAutoscaler and names.TaintReadiness. Run runs it.
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

// NodeChanged looks at a node again: it connected or reported.
func (u *Untainter) NodeChanged(node string) { u.nodes.Add(node) }

// sync looks at one node, and reports whether nothing is left to do there.
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

// note keeps why a node is still tainted ("" for a node that is not), and logs
// each reason once.
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
		return // no node more or less waits
	}
	oldest := 0.
	for _, w := range u.waiting {
		if since := float64(w.since.UnixMilli()) / 1000; oldest == 0 || since < oldest {
			oldest = since
		}
	}
	u.publisher.Metrics.taintedSince.Set(oldest)
}

// unready says why a node is not ready for Pods with volumes, or nil.
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

// agentNotReady reports whether a taint is the start-up taint, under any of its keys.
func (u *Untainter) agentNotReady(t v1.Taint) bool { return slices.Contains(u.keys, t.Key) }

// CheckTaintKey refuses what is no key of a taint, and the keys with which Kubernetes itself taints nodes.
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

// untaint removes the taint, and nothing else: where the node is not as the cache shows it
// any more, the patch fails and is made again.
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
