package fleet

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/uplink"
)

const (
	// drainReplaced is how long calls on a session that was replaced may go on:
	// longer than any call's deadline.
	drainReplaced = 6 * time.Minute
	// Pauses between attempts to watch a node whose stream broke while its
	// session stands.
	watchRetryMin = 100 * time.Millisecond
	watchRetryMax = 10 * time.Second
)

// Options configure a Fleet.
type Options struct {
	// OnChange is called with every new view of a node: a report, a connection,
	// the loss of one. Calls for one node are in order and not concurrent;
	// those for different nodes are concurrent. It must be quick.
	OnChange func(*View)
	// OnForget is called with every node that is forgotten, in order with the
	// OnChange calls for that node: a report of a node that reconnects meanwhile
	// comes after it. It must be quick; nil calls nothing.
	OnForget func(node string)
	// OnCall is called with every call to a node that ended: the full name of the RPC, what
	// it ended with, and how long it took. It must be quick; nil calls nothing.
	OnCall func(method string, err error, took time.Duration)
	// Log is where the fleet reports; nil means slog.Default().
	Log *slog.Logger
}

// Fleet holds the nodes. All methods may be called concurrently.
type Fleet struct {
	onChange func(*View)
	onForget func(string)
	onCall   func(string, error, time.Duration)
	log      *slog.Logger

	ctx    context.Context // ends all watches
	cancel context.CancelFunc
	work   sync.WaitGroup
	// answers and reports are places for what is decoded.
	answers, reports places

	mu    sync.Mutex
	nodes map[string]*node
	// byName and byID are the nodes whose view has a volume of a name or an id.
	byName, byID reporters
	closed       bool
}

// node is one member of the fleet.
type node struct {
	name string

	// order serialises changes of view, and the OnChange and OnForget calls for
	// them. It is taken before Fleet.mu.
	order sync.Mutex

	// Guarded by Fleet.mu:
	session *uplink.Session // current, or nil
	before  *uplink.Session // that it replaced, or nil
	view    *View
	// calls are the places of each kind of calls, see kindOf. Sessions that were replaced share them.
	calls map[string]*semaphore.Weighted
}

// New makes an empty fleet. Close ends it.
func New(o Options) *Fleet {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Fleet{
		onChange: o.OnChange, onForget: o.OnForget, onCall: o.OnCall, log: o.Log.With("component", "fleet"),
		ctx: ctx, cancel: cancel, answers: make(places, decodedAnswers), reports: make(places, decodedReports),
		nodes: map[string]*node{}, byName: reporters{}, byID: reporters{},
	}
}

// Close ends all sessions and watches and waits for them.
func (f *Fleet) Close() {
	f.mu.Lock()
	f.closed = true
	var open []*uplink.Session
	for _, n := range f.nodes {
		if n.session != nil {
			open = append(open, n.session)
		}
	}
	f.mu.Unlock()
	for _, s := range open {
		s.Retire(0)
	}
	f.cancel()
	f.work.Wait()
}

// Add takes over an accepted session. It is uplink.ServerConfig.OnSession.
func (f *Fleet) Add(s *uplink.Session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// To close a session takes seconds where its peer takes nothing in: that is not done under the lock.
	if f.closed {
		s.Retire(0)
		return
	}
	n := f.nodes[s.Node()]
	if n == nil {
		n = &node{name: s.Node(), view: &View{Node: s.Node()}, calls: map[string]*semaphore.Weighted{}}
		f.nodes[n.name] = n
	}
	if n.session != nil {
		n.session.Retire(drainReplaced)
		if n.before != nil {
			n.before.Retire(0) // a node that connects again and again has two at a time
		}
		n.before = n.session
	}
	n.session = s
	f.work.Go(func() { f.attend(n, s) })
}

// attend watches one session for as long as it is the current one of its node.
func (f *Fleet) attend(n *node, s *uplink.Session) {
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	f.work.Go(func() {
		select {
		case <-s.Done():
			cancel()
		case <-ctx.Done():
		}
	})
	pause := watchRetryMin
	for ctx.Err() == nil {
		reported, err := f.watch(ctx, n, s)
		if !f.isCurrent(n, s) || errors.Is(err, uplink.ErrSessionClosed) {
			break
		}
		if ctx.Err() != nil {
			break
		}
		if reported {
			pause = watchRetryMin
		}
		f.log.Warn("watch of node broke, starting it again", "node", n.name, "error", err)
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
		pause = min(2*pause, watchRetryMax)
	}
	f.disconnect(n, s)
}

// disconnect ends a session as the current one of its node, if it is: a
// session that replaced it speaks for the node.
func (f *Fleet) disconnect(n *node, s *uplink.Session) {
	n.order.Lock()
	defer n.order.Unlock()
	view := f.viewBy(n, s)
	if view == nil {
		return
	}
	next := *view
	next.Connected, next.Refused = false, ""
	f.replace(n, s, &next, nil)
}

// refuse notes on a node's view that its report is not taken in.
func (f *Fleet) refuse(n *node, s *uplink.Session, why *ReportRefusedError) error {
	n.order.Lock()
	defer n.order.Unlock()
	view := f.viewBy(n, s)
	if view == nil || view.Refused == why.Error() {
		return why
	}
	next := *view
	next.Connected, next.Refused = false, why.Error()
	f.replace(n, s, &next, s)
	return why
}

// take applies a report to the view of its node. It fails when the report does not follow the one
// before, and when the view would be larger than one may be. Of a session that was replaced, nothing is applied.
func (f *Fleet) take(n *node, s *uplink.Session, r *lvmdv1.WatchResponse) error {
	n.order.Lock()
	defer n.order.Unlock()
	view := f.viewBy(n, s)
	if view == nil {
		return nil
	}
	next, ok := view.apply(r)
	if !ok {
		return status.Error(codes.Internal, "lvmd's stream has a gap")
	}
	if refused := next.exceeds(); refused != nil {
		return refused
	}
	next.Connected, next.Refused = true, ""
	f.replace(n, s, next, s)
	return nil
}

// watch follows one stream until it breaks, and reports whether it brought anything.
func (f *Fleet) watch(ctx context.Context, n *node, s *uplink.Session) (reported bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The full state, always: a session that is lost loses no more than one such
	// message, and a view that is whole each time cannot have missed anything.
	reader := &boundedReader{CodecV2: protoCodec, decoding: f.reports, node: n.name}
	stream, err := lvmdv1.NewLVMDClient(s).Watch(ctx, &lvmdv1.WatchRequest{},
		grpc.ForceCodecV2(reader), grpc.MaxCallRecvMsgSize(maxReportBytes))
	if err != nil {
		return false, err
	}
	// A node that reports faster is read more slowly; lvmd then sums up what changed.
	limit := rate.NewLimiter(reportsPerSecond, reportsAtOnce)
	leftOut := rate.Sometimes{Interval: time.Minute}
	for first := true; ; first = false {
		if err := limit.Wait(ctx); err != nil {
			return reported, err
		}
		r, err := stream.Recv()
		if reader.refused != nil {
			return reported, f.refuse(n, s, reader.refused)
		}
		if tooLarge(err) {
			return reported, f.refuse(n, s, tooMuch(n.name, "bytes in one message", maxReportBytes))
		}
		if err != nil {
			return reported, boundError(err)
		}
		if r.GetEpoch() == "" || first && !r.GetFull() {
			return reported, status.Error(codes.Internal, "lvmd's stream does not begin with its full state")
		}
		bounded := boundTexts(r)
		if bounded.refused != nil {
			return reported, f.refuse(n, s, &ReportRefusedError{Node: n.name, Why: bounded.refused.Error()})
		}
		if bounded.leftOut != nil {
			leftOut.Do(func() {
				f.log.Warn("a text that a node reported is left out", "node", n.name, "error", bounded.leftOut)
			})
		}
		err = f.take(n, s, r)
		if refused := (*ReportRefusedError)(nil); errors.As(err, &refused) {
			return reported, f.refuse(n, s, refused)
		}
		if err != nil {
			return reported, err
		}
		reported = true
	}
}

// viewBy returns the node's view while s is its current session, else nil. The caller holds n.order.
func (f *Fleet) viewBy(n *node, s *uplink.Session) *View {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.session != s {
		return nil
	}
	return n.view
}

// replace replaces the node's view, and in the same instant its session, and calls OnChange, as
// long as s is the node's current session. The caller holds n.order since it read the view that
// next was made of. It makes next without the fleet's lock: a large view must not hold up other nodes.
func (f *Fleet) replace(n *node, s *uplink.Session, next *View, session *uplink.Session) {
	// Only a holder of n.order writes it.
	names, ids := keysChanged(n.view.ByName, next.ByName), keysChanged(n.view.Volumes, next.Volumes)
	f.mu.Lock()
	if n.session != s {
		f.mu.Unlock()
		return
	}
	f.byName.update(n.name, names)
	f.byID.update(n.name, ids)
	n.view, n.session = next, session
	f.mu.Unlock()
	if f.onChange != nil {
		f.onChange(next)
	}
}

func (f *Fleet) isCurrent(n *node, s *uplink.Session) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return n.session == s
}

// View returns what a node last reported, or false for a node that never
// connected to this process.
func (f *Fleet) View(node string) (*View, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nodes[node]
	if n == nil {
		return nil, false
	}
	return n.view, true
}

// Views returns the view of every node, in no particular order.
func (f *Fleet) Views() []*View {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]*View, 0, len(f.nodes))
	for _, n := range f.nodes {
		out = append(out, n.view)
	}
	return out
}

// Holders returns the nodes that last reported a volume of that name, sorted.
func (f *Fleet) Holders(volumeName string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.byName[volumeName])
}

// ReportsOf returns what nodes last reported of the volume of that id, by node. An id is one
// volume's, on one node: where there are several, a node reports what another one has.
func (f *Fleet) ReportsOf(id string) map[string]*lvmdv1.Volume {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]*lvmdv1.Volume{}
	for _, name := range f.byID[id] {
		out[name] = f.nodes[name].view.Volumes[id]
	}
	return out
}

// Connected is how many nodes have an uplink.
func (f *Fleet) Connected() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	count := 0
	for _, n := range f.nodes {
		if n.session != nil {
			count++
		}
	}
	return count
}

// Refused is how many nodes report more than is taken in.
func (f *Fleet) Refused() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	count := 0
	for _, n := range f.nodes {
		if n.view.Refused != "" {
			count++
		}
	}
	return count
}

// Forget drops what a node reported, unless the node is connected. It is for
// nodes that left the cluster; one that comes back is a new member.
func (f *Fleet) Forget(name string) {
	f.mu.Lock()
	n := f.nodes[name]
	f.mu.Unlock()
	if n == nil {
		return
	}
	n.order.Lock()
	defer n.order.Unlock()
	if !f.forgetView(n) {
		return
	}
	if f.onForget != nil {
		f.onForget(name)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	// A node that connected meanwhile stays: its first report waits for n.order.
	if n.session == nil {
		delete(f.nodes, name)
	}
}

// forgetView empties the view of a member that is not connected, and reports
// whether it did.
func (f *Fleet) forgetView(n *node) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nodes[n.name] != n || n.session != nil {
		return false
	}
	f.byName.update(n.name, keysChanged(n.view.ByName, nil))
	f.byID.update(n.name, keysChanged(n.view.Volumes, nil))
	n.view = &View{Node: n.name}
	return true
}

// current returns the node's session.
func (f *Fleet) current(name string) (*uplink.Session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nodes[name]
	if n == nil || n.session == nil {
		return nil, &NotConnectedError{Node: name}
	}
	return n.session, nil
}
