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
	// drainReplaced is how long calls on a replaced session may continue: longer than any call's
	// deadline.
	drainReplaced = 6 * time.Minute
	// The pause before a broken watch restarts on a live session.
	watchRetryMin = 100 * time.Millisecond
	watchRetryMax = 10 * time.Second
)

// Options configure a Fleet.
type Options struct {
	// OnChange is called with every new view of a node: after a report, accepted or refused, and
	// after the loss of the connection. Calls for one node are in order and not concurrent; calls
	// for different nodes are concurrent. It must be quick.
	OnChange func(*View)
	// OnForget is called with every forgotten node, in order with its OnChange calls: the report of
	// a node that reconnects in the meantime comes after. It must be quick; nil is allowed.
	OnForget func(node string)
	// OnCall is called after every call to a node with the full name of the RPC, its error and its
	// duration. It must be quick; nil is allowed.
	OnCall func(method string, err error, took time.Duration)
	// Log defaults to slog.Default().
	Log *slog.Logger
}

// Fleet holds the nodes. Its methods may be called concurrently.
type Fleet struct {
	onChange func(*View)
	onForget func(string)
	onCall   func(string, error, time.Duration)
	log      *slog.Logger

	ctx    context.Context // ends all watches
	cancel context.CancelFunc
	work   sync.WaitGroup
	// answers and reports limit concurrent decoding.
	answers, reports places

	mu    sync.Mutex
	nodes map[string]*node
	// byName and byID index the nodes that report a volume.
	byName, byID reporters
	closed       bool
}

type node struct {
	name string

	// order serialises changes of view and their OnChange and OnForget calls. Lock order: before
	// Fleet.mu.
	order sync.Mutex

	// Guarded by Fleet.mu:
	session *uplink.Session // current, or nil
	before  *uplink.Session // the one it replaced, or nil
	view    *View
	// calls holds the places for each kind of call. A replaced session shares them with its
	// successor.
	calls map[string]*semaphore.Weighted
}

// New returns an empty fleet. The caller must Close it.
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

// Close ends all sessions and watches, and waits for them.
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

// Add takes over an accepted session. It serves as uplink.ServerConfig.OnSession.
func (f *Fleet) Add(s *uplink.Session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// Retire does not block: closing takes seconds when the peer reads nothing, too long for the
	// lock.
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
			n.before.Retire(0) // a node that reconnects again and again keeps only two sessions
		}
		n.before = n.session
	}
	n.session = s
	f.work.Go(func() { f.attend(n, s) })
}

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

// disconnect marks the node as disconnected, unless another session has replaced s.
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

// take applies a report to the view of its node. It fails if the report does not follow the
// previous one, or would make the view too large. It ignores reports of a replaced session.
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

// watch reads one stream until it breaks. reported is true if it accepted any report.
func (f *Fleet) watch(ctx context.Context, n *node, s *uplink.Session) (reported bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Always ask for the full state: a view that starts whole cannot have missed anything, and a
	// lost session costs no more than one such message.
	reader := &boundedReader{CodecV2: protoCodec, decoding: f.reports, node: n.name}
	stream, err := lvmdv1.NewLVMDClient(s).Watch(ctx, &lvmdv1.WatchRequest{},
		grpc.ForceCodecV2(reader), grpc.MaxCallRecvMsgSize(maxReportBytes))
	if err != nil {
		return false, err
	}
	// Read a node that reports faster more slowly; lvmd then merges its changes.
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

// viewBy returns the node's view, or nil if s is not its current session. The caller holds n.order.
func (f *Fleet) viewBy(n *node, s *uplink.Session) *View {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.session != s {
		return nil
	}
	return n.view
}

// replace sets the node's view and session at once, and calls OnChange, unless s is no longer the
// current session. The caller must have held n.order since it read the view that next derives from.
func (f *Fleet) replace(n *node, s *uplink.Session, next *View, session *uplink.Session) {
	// Only a holder of n.order writes n.view, so read it without Fleet.mu: comparing a large view
	// must not delay other nodes.
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

// View returns the last report of a node, or false if it never connected to this process.
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

// Holders returns the nodes whose last report has a volume of that name, sorted.
func (f *Fleet) Holders(volumeName string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.byName[volumeName])
}

// ReportsOf returns the last reports of a volume, by node. An id belongs to one volume on one node:
// with several reports, some node reports a volume of another.
func (f *Fleet) ReportsOf(id string) map[string]*lvmdv1.Volume {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]*lvmdv1.Volume{}
	for _, name := range f.byID[id] {
		out[name] = f.nodes[name].view.Volumes[id]
	}
	return out
}

// Connected returns the number of nodes that have an uplink.
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

// Refused returns the number of nodes whose reports are refused.
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

// Forget drops the report of a node that left the cluster, unless it is connected. A node that
// comes back is a new member.
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
	// Keep a node that has connected since: its first report waits for n.order.
	if n.session == nil {
		delete(f.nodes, name)
	}
}

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

func (f *Fleet) current(name string) (*uplink.Session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nodes[name]
	if n == nil || n.session == nil {
		return nil, &NotConnectedError{Node: name}
	}
	return n.session, nil
}
