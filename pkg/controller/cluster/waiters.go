package cluster

import (
	"maps"
	"slices"
	"sync"
)

// Waiters holds keys of a queue that wait for a node to connect.
type Waiters struct {
	mu     sync.Mutex
	byNode map[string]map[string]struct{}
}

// Wait makes Take return key when the node connects.
func (w *Waiters) Wait(node, key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byNode == nil {
		w.byNode = map[string]map[string]struct{}{}
	}
	if w.byNode[node] == nil {
		w.byNode[node] = map[string]struct{}{}
	}
	w.byNode[node][key] = struct{}{}
}

// Forget removes key from all nodes: its work is done.
func (w *Waiters) Forget(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for node, keys := range w.byNode {
		if delete(keys, key); len(keys) == 0 {
			delete(w.byNode, node)
		}
	}
}

// Take removes and returns the keys that wait for a node.
func (w *Waiters) Take(node string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	keys := slices.Sorted(maps.Keys(w.byNode[node]))
	delete(w.byNode, node)
	return keys
}

// Nodes returns the nodes with waiting keys.
func (w *Waiters) Nodes() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.byNode))
}
