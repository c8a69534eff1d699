package audit

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	apply "k8s.io/client-go/applyconfigurations/core/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/workloop"
	"github.com/carve-csi/carve/pkg/fleet"
)

// Reasons of conditions of Nodes. A class that does not serve has the type of its condition as
// reason.
const (
	ReasonServing  = "Serving"
	ReasonNodeAway = "NodeAway"
)

const (
	nodeConditionsOwner = "carve-node-conditions"
	// A new leader reads all Nodes.
	nodeConditionsWorkers = 4
	// writePause is the minimum time between writes to a Node. It doubles with each failure,
	// up to failurePause.
	writePause   = 10 * time.Second
	failurePause = 10 * time.Minute
	// Bounds of a report's additions to its Node; text in bytes.
	mostNodeConditions = 64
	mostConditionText  = 512
)

// NodeConditions keeps a condition of each device class on its Node, of type names.Prefix plus
// the class' name: True while the class serves, False while no volume can be made in it,
// Unknown once the node is held back because its agent is away. It writes a Node only when
// that changes.
type NodeConditions struct {
	*cluster.Cluster
	nodes     *workloop.Loop[string] // by name
	available *cluster.Availability
	pause     time.Duration

	mu    sync.Mutex
	known map[string]*conditionedNode
}

// conditionedNode belongs to one worker at a time.
type conditionedNode struct {
	uid types.UID
	// has are our conditions on the Node, nil before they are read.
	has nodeConditions
	// next is the earliest time of a write, pause the last delay after a failure.
	next  time.Time
	pause time.Duration
}

type nodeConditions map[v1.NodeConditionType]v1.NodeCondition

// NewNodeConditions returns a NodeConditions for Run. pause is the minimum time between writes
// to a Node; zero means ten seconds.
func NewNodeConditions(c *cluster.Cluster, available *cluster.Availability, pause time.Duration) *NodeConditions {
	n := &NodeConditions{Cluster: c, available: available, pause: cmp.Or(pause, writePause), known: map[string]*conditionedNode{}}
	n.nodes = workloop.New(workloop.Options[string]{
		Name: "node-conditions", Parallel: nodeConditionsWorkers, RetryMin: writePause, RetryMax: failurePause,
		Work: func(ctx context.Context, node string) (time.Duration, error) { return n.Sync(ctx, node), nil },
	})
	return n
}

// Run works until ctx is done. The caches must have synced.
func (n *NodeConditions) Run(ctx context.Context) error {
	changed := func(node *v1.Node) { n.nodes.Add(node.Name) }
	stop, err := cluster.Watch(cluster.OnChange(n.Nodes, changed, changed))
	if err != nil {
		return err
	}
	defer stop()
	n.nodes.Run(ctx)
	return nil
}

// NodeChanged queues a node: it connected, reported, is away, or is held back.
func (n *NodeConditions) NodeChanged(node string) { n.nodes.Add(node) }

// Sync updates a Node's conditions and returns the time to the next call, or zero to wait for
// an event. Never call it concurrently for one Node.
func (n *NodeConditions) Sync(ctx context.Context, name string) (again time.Duration) {
	at := n.node(name)
	if at == nil {
		return 0
	}
	now := n.Now()
	if wait := at.next.Sub(now); wait > 0 {
		return wait
	}
	err := n.read(ctx, name, at)
	if err == nil {
		wanted := n.wanted(name, at.has)
		if maps.EqualFunc(wanted, at.has, sameCondition) {
			return 0
		}
		err = n.write(ctx, name, at, wanted, now)
	}
	switch {
	case err == nil:
		at.pause, at.next = 0, now.Add(n.pause)
		return 0
	case ctx.Err() != nil || apierrors.IsNotFound(err): // Its deletion is an event.
		return 0
	}
	at.pause = min(max(2*at.pause, n.pause), failurePause)
	at.next = now.Add(at.pause)
	n.Log.Warn("the conditions of a Node could not be written, trying on", "node", name, "after", at.pause, "error", err)
	return at.pause
}

func (n *NodeConditions) node(name string) *conditionedNode {
	n.mu.Lock()
	defer n.mu.Unlock()
	node, err := n.NodeLister.Get(name)
	if err != nil {
		delete(n.known, name)
		return nil
	}
	if at := n.known[name]; at != nil && at.uid == node.UID {
		return at
	}
	n.known[name] = &conditionedNode{uid: node.UID}
	return n.known[name]
}

// read fills at.has once. The cache may be older than the previous leader's writes.
func (n *NodeConditions) read(ctx context.Context, name string, at *conditionedNode) error {
	if at.has != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
	defer cancel()
	node, err := n.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the Node: %w", err)
	}
	at.has = nodeConditions{}
	for _, c := range node.Status.Conditions {
		if strings.HasPrefix(string(c.Type), names.Prefix) {
			at.has[c.Type] = c
		}
	}
	return nil
}

// wanted keeps the present conditions while the agent is away and may return.
func (n *NodeConditions) wanted(name string, has nodeConditions) nodeConditions {
	if view, ok := n.Fleet.View(name); ok && view.Connected {
		return conditionsOfNode(view)
	}
	if len(has) == 0 || !n.available.NoteAway(name) {
		return has
	}
	wanted := nodeConditions{}
	for kind := range has {
		wanted[kind] = v1.NodeCondition{Type: kind, Status: v1.ConditionUnknown, Reason: ReasonNodeAway,
			Message: "the node's agent is not connected to the controller, or its report is refused"}
	}
	return wanted
}

// conditionsOfNode skips classes whose name cannot be part of a condition type.
func conditionsOfNode(view *fleet.View) nodeConditions {
	wanted := nodeConditions{}
	for _, name := range view.ClassNames() {
		kind := names.Prefix + name
		if len(wanted) < mostNodeConditions && len(validation.IsQualifiedName(kind)) == 0 {
			wanted[v1.NodeConditionType(kind)] = conditionOfClass(kind, view.Classes[name])
		}
	}
	return wanted
}

func conditionOfClass(kind string, class *lvmdv1.DeviceClass) v1.NodeCondition {
	c := v1.NodeCondition{Type: v1.NodeConditionType(kind), Status: v1.ConditionTrue, Reason: ReasonServing,
		Message: "volumes can be made in the device class while it has free space"}
	var causes []string
	for _, of := range class.GetConditions() {
		if makesUnusable(class, of.GetType()) {
			causes = append(causes, of.GetType()+": "+of.GetMessage())
		}
	}
	if len(causes) == 0 {
		return c
	}
	slices.Sort(causes)
	c.Status = v1.ConditionFalse
	c.Reason, c.Message, _ = strings.Cut(strings.Join(slices.Compact(causes), "; "), ": ")
	if len(c.Message) > mostConditionText {
		c.Message = strings.ToValidUTF8(c.Message[:mostConditionText], "") + " …"
	}
	return c
}

func sameCondition(a, b v1.NodeCondition) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// write applies all conditions at once: the API server then removes those of classes that are
// gone, as this field manager owns them.
func (n *NodeConditions) write(ctx context.Context, name string, at *conditionedNode, wanted nodeConditions, now time.Time) error {
	status := apply.NodeStatus()
	for _, kind := range slices.Sorted(maps.Keys(wanted)) {
		c := wanted[kind]
		c.LastTransitionTime = metav1.NewTime(now)
		if before, had := at.has[kind]; had && before.Status == c.Status {
			c.LastTransitionTime = before.LastTransitionTime
		}
		wanted[kind] = c
		// Without a heartbeat, kubectl shows the year 1.
		status.WithConditions(apply.NodeCondition().WithType(kind).WithStatus(c.Status).WithReason(c.Reason).
			WithMessage(c.Message).WithLastTransitionTime(c.LastTransitionTime).WithLastHeartbeatTime(c.LastTransitionTime))
	}
	ctx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
	defer cancel()
	_, err := n.Client.CoreV1().Nodes().ApplyStatus(ctx, apply.Node(name).WithStatus(status),
		metav1.ApplyOptions{FieldManager: nodeConditionsOwner, Force: true})
	if apierrors.IsForbidden(err) {
		err = fmt.Errorf("the controller may not patch nodes/status, see deploy/components/node-conditions: %w", err)
	}
	if at.has = wanted; err != nil {
		at.has = nil // Read the Node again.
	}
	return err
}
