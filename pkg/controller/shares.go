package controller

import (
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
)

// shares bounds how many workers of an upstream library wait for one node, and how many work for
// one namespace: the libraries' queues know neither. A call that is refused is made again, later
// each time, and holds no worker meanwhile. It is safe for concurrent use.
type shares struct {
	ofNode, ofNamespace int

	mu                sync.Mutex
	nodes, namespaces map[string]int
}

// newShares divides so many workers: one node gets a sixteenth of them, one namespace an eighth.
func newShares(workers int) *shares {
	return &shares{
		ofNode: max(1, workers/16), ofNamespace: max(1, workers/8),
		nodes: map[string]int{}, namespaces: map[string]int{},
	}
}

// take begins a call to a node for a namespace; an empty one is not known, and not counted. The
// caller calls release once. An error is a gRPC status that no library takes for final.
func (s *shares) take(node, namespace string) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[node] >= s.ofNode {
		return nil, status.Errorf(codes.Aborted, "node %s has not answered %d such calls yet; it is tried again", node, s.nodes[node])
	}
	if namespace != "" && s.namespaces[namespace] >= s.ofNamespace {
		return nil, status.Errorf(codes.Aborted, "%d such calls for namespace %s are under way; it is tried again", s.namespaces[namespace], namespace)
	}
	s.nodes[node]++
	s.namespaces[namespace]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		leave(s.nodes, node)
		leave(s.namespaces, namespace)
	}, nil
}

func leave(counts map[string]int, key string) {
	if counts[key]--; counts[key] == 0 {
		delete(counts, key)
	}
}

// claimNamespace is that of the claim that a volume is for.
func claimNamespace(pv *v1.PersistentVolume) string {
	if pv.Spec.ClaimRef == nil {
		return ""
	}
	return pv.Spec.ClaimRef.Namespace
}
