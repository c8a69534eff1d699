package controller

import (
	"cmp"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
)

// shares limits the workers of an upstream library that wait for one node or work for one
// namespace, which the library's queue does not. A rejected call is retried with backoff and
// holds no worker meanwhile. Up to half of a node's share is kept for rejected namespaces
// without a call there, first come first served; otherwise others would take each free place
// before they return. Safe for concurrent use.
type shares struct {
	ofNode, ofNamespace, ofBoth int

	mu      sync.Mutex
	calls   map[target]int
	waiting map[string]map[string]attempts // by node, then by namespace
}

type attempts struct{ first, last time.Time }

// waitsFor is the time after which a rejected namespace no longer waits: twice the longest
// backoff of a library.
const waitsFor = 2 * time.Minute

type target struct{ node, namespace string }

// all stands for any node or any namespace; neither can have that name.
const all = "*"

// newShares gives a node 1/16 of the workers, a namespace half of that per node, and 1/8 in
// all.
func newShares(workers int) *shares {
	return &shares{
		ofNode: max(1, workers/16), ofNamespace: max(1, workers/8), ofBoth: max(1, workers/32), calls: map[target]int{}, waiting: map[string]map[string]attempts{},
	}
}

// take starts a call to a node for a namespace; an empty namespace is not counted. Call
// release once. Errors are gRPC statuses that no library treats as final.
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

// wait requires the lock, as do the methods below.
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

// keptFrom returns the number of places kept for namespaces that have waited longer.
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

func claimNamespace(pv *v1.PersistentVolume) string {
	if pv.Spec.ClaimRef == nil {
		return ""
	}
	return pv.Spec.ClaimRef.Namespace
}
