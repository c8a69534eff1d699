package controller

import (
	"cmp"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
)

// shares bounds how many workers of an upstream library wait for one node, and how many work for
// one namespace: the libraries' queues know neither. A call that is refused is made again, later
// each time, and holds no worker meanwhile. Half of a node's share is kept for namespaces that were
// refused and have no call there, in the order in which they were first refused: others could take each
// place again before they come back. It is safe for concurrent use.
type shares struct {
	ofNode, ofNamespace, ofBoth int

	mu      sync.Mutex
	calls   map[target]int
	waiting map[string]map[string]attempts // by node, then by namespace
}

// attempts are when calls of a namespace were refused for want of a place.
type attempts struct{ first, last time.Time }

// waitsFor is how long a namespace that was refused is waited for: twice the longest back-off of a library.
const waitsFor = 2 * time.Minute

// target is what calls are counted for: a node, a namespace, or a namespace on a node.
type target struct{ node, namespace string }

// all is in a target that is not of one node, or not of one namespace. It names neither.
const all = "*"

// newShares divides so many workers: one node gets a sixteenth of them, of which one namespace gets
// half, and one namespace an eighth on all nodes.
func newShares(workers int) *shares {
	return &shares{
		ofNode: max(1, workers/16), ofNamespace: max(1, workers/8), ofBoth: max(1, workers/32), calls: map[target]int{}, waiting: map[string]map[string]attempts{},
	}
}

// take begins a call to a node for a namespace; an empty one is not known, and not counted. The
// caller calls release once. An error is a gRPC status that no library takes for final.
func (s *shares) take(node, namespace string) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	targets := []target{{node, all}}
	everywhere, both := target{all, namespace}, target{node, namespace}
	if namespace != "" {
		if n := s.calls[both]; n >= s.ofBoth {
			return nil, status.Errorf(codes.Aborted, "node %s has not answered %d such calls for namespace %s yet; it is tried again", node, n, namespace)
		}
		if n := s.calls[everywhere]; n >= s.ofNamespace {
			s.stopWaiting(both)
			return nil, status.Errorf(codes.Aborted, "%d such calls for namespace %s are under way; it is tried again", n, namespace)
		}
		targets = append(targets, everywhere, both)
	}
	if n := s.calls[targets[0]]; n >= s.ofNode-s.keptFrom(both) {
		if namespace != "" && s.calls[both] == 0 {
			s.wait(both)
		}
		return nil, status.Errorf(codes.Aborted, "node %s has not answered %d such calls yet; it is tried again", node, n)
	}
	s.stopWaiting(both)
	s.count(targets, 1)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.count(targets, -1)
	}, nil
}

// wait notes that a namespace was refused on a node. It is called with the lock held, as are those below.
func (s *shares) wait(t target) {
	now := time.Now()
	if s.waiting[t.node] == nil {
		s.waiting[t.node] = map[string]attempts{}
	}
	s.waiting[t.node][t.namespace] = attempts{first: cmp.Or(s.waiting[t.node][t.namespace].first, now), last: now}
}

func (s *shares) stopWaiting(t target) {
	if delete(s.waiting[t.node], t.namespace); len(s.waiting[t.node]) == 0 {
		delete(s.waiting, t.node)
	}
}

// keptFrom is how many places of the node are kept for namespaces that wait longer than this one.
func (s *shares) keptFrom(t target) int {
	own, waits := s.waiting[t.node][t.namespace]
	kept := 0
	for namespace, a := range s.waiting[t.node] {
		switch {
		case time.Since(a.last) > waitsFor:
			s.stopWaiting(target{t.node, namespace})
		case namespace != t.namespace && (!waits || a.first.Before(own.first)):
			kept++
		}
	}
	return min(kept, s.ofNode/2)
}

func (s *shares) count(targets []target, n int) {
	for _, t := range targets {
		if s.calls[t] += n; s.calls[t] == 0 {
			delete(s.calls, t)
		}
	}
}

// claimNamespace is that of the claim that a volume is for.
func claimNamespace(pv *v1.PersistentVolume) string {
	if pv.Spec.ClaimRef == nil {
		return ""
	}
	return pv.Spec.ClaimRef.Namespace
}
