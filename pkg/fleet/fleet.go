package fleet

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

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
	// Log is where the fleet reports; nil means slog.Default().
	Log *slog.Logger
}

// Fleet holds the nodes. All methods may be called concurrently.
type Fleet struct {
	onChange func(*View)
	log      *slog.Logger

	ctx    context.Context // ends all watches
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu     sync.Mutex
	nodes  map[string]*node
	byName map[string]map[string]struct{} // volume name → nodes that reported it
	closed bool
}

// node is one member of the fleet.
type node struct {
	name string

	// order serialises changes of view and the OnChange calls for them. It is
	// taken before Fleet.mu.
	order sync.Mutex

	// Guarded by Fleet.mu:
	session *uplink.Session // current, or nil
	view    *View
}

// New makes an empty fleet. Close ends it.
func New(o Options) *Fleet {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Fleet{
		onChange: o.OnChange, log: o.Log.With("component", "fleet"),
		ctx: ctx, cancel: cancel,
		nodes: map[string]*node{}, byName: map[string]map[string]struct{}{},
	}
}

// Close ends all sessions and watches and waits for them.
func (f *Fleet) Close() {
	f.mu.Lock()
	f.closed = true
	for _, n := range f.nodes {
		if n.session != nil {
			n.session.Close()
		}
	}
	f.mu.Unlock()
	f.cancel()
	f.work.Wait()
}

// Add takes over an accepted session. It is uplink.ServerConfig.OnSession.
func (f *Fleet) Add(s *uplink.Session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		s.Close()
		return
	}
	n := f.nodes[s.Node()]
	if n == nil {
		n = &node{name: s.Node(), view: &View{Node: s.Node()}}
		f.nodes[n.name] = n
	}
	if n.session != nil {
		n.session.Retire(drainReplaced)
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
	f.change(n, func() *View {
		if n.session != s {
			return nil // replaced: the new session speaks for the node
		}
		n.session = nil
		next := *n.view
		next.Connected = false
		return &next
	})
}

// watch follows one stream until it breaks, and tells whether it brought anything.
func (f *Fleet) watch(ctx context.Context, n *node, s *uplink.Session) (reported bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The full state, always: a session that is lost loses no more than one such
	// message, and a view that is whole each time cannot have missed anything.
	stream, err := lvmdv1.NewLVMDClient(s).Watch(ctx, &lvmdv1.WatchRequest{})
	if err != nil {
		return false, err
	}
	for first := true; ; first = false {
		r, err := stream.Recv()
		if err != nil {
			return reported, err
		}
		if r.GetEpoch() == "" || first && !r.GetFull() {
			return reported, status.Error(codes.Internal, "lvmd's stream does not begin with its full state")
		}
		applied := true
		f.change(n, func() *View {
			if n.session != s {
				return nil
			}
			next, ok := n.view.apply(r)
			if !ok {
				applied = false
				return nil
			}
			next.Connected = true
			return next
		})
		if !applied {
			return reported, status.Error(codes.Internal, "lvmd's stream has a gap")
		}
		reported = true
	}
}

// change replaces the node's view by the one that f returns, if any, and tells
// OnChange. f is called with the fleet locked.
func (f *Fleet) change(n *node, next func() *View) {
	n.order.Lock()
	defer n.order.Unlock()
	f.mu.Lock()
	view := next()
	if view != nil {
		f.reindex(n.view, view)
		n.view = view
	}
	f.mu.Unlock()
	if view != nil && f.onChange != nil {
		f.onChange(view)
	}
}

// reindex keeps byName in step with a node's view.
func (f *Fleet) reindex(old, next *View) {
	for name := range old.ByName {
		if _, still := next.ByName[name]; !still {
			delete(f.byName[name], old.Node)
			if len(f.byName[name]) == 0 {
				delete(f.byName, name)
			}
		}
	}
	for name := range next.ByName {
		if f.byName[name] == nil {
			f.byName[name] = map[string]struct{}{}
		}
		f.byName[name][next.Node] = struct{}{}
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
	var out []string
	for name := range f.byName[volumeName] {
		out = append(out, name)
	}
	slices.Sort(out)
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

// Forget drops a node that is not connected. It is for nodes that left the
// cluster; one that comes back is a new member.
func (f *Fleet) Forget(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nodes[name]
	if n == nil || n.session != nil {
		return
	}
	f.reindex(n.view, &View{Node: name})
	delete(f.nodes, name)
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
