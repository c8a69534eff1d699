package cluster

import "time"

// Refused records that a node cannot create what a StorageClass asks for, such as a file system
// with blocks smaller than the sectors of its disks. The scheduler does not know that, so the
// node's capacity is published as zero for that StorageClass only, for twice as long each time.
func (a *Availability) Refused(node, storageClass string) {
	a.mu.Lock()
	s := a.state(node)
	f := s.refused[storageClass]
	if f == nil {
		f = &failing{}
		s.refused[storageClass] = f
	}
	if f.held {
		a.mu.Unlock()
		return
	}
	length := a.nextHold(f)
	f.held, f.until = true, a.now().Add(length)
	time.AfterFunc(length, func() { a.endRefusal(node, storageClass, f) })
	a.mu.Unlock()
	a.log.Info("a node cannot make the file systems of a StorageClass, for which its capacity is held back", "node", node, "storage_class", storageClass, "for", length)
	a.changed(node)
}

func (a *Availability) endRefusal(node, storageClass string, f *failing) {
	a.mu.Lock()
	s := a.nodes[node]
	over := s != nil && s.refused[storageClass] == f && f.held
	f.held = false
	a.mu.Unlock()
	if over {
		a.changed(node)
	}
}

// Refuses reports whether a node's capacity is held back for a StorageClass.
func (a *Availability) Refuses(node, storageClass string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.nodes[node]
	return s != nil && s.refused[storageClass] != nil && s.refused[storageClass].held
}

// Accepted forgets that a node refused a StorageClass.
func (a *Availability) Accepted(node, storageClass string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.nodes[node]; s != nil {
		delete(s.refused, storageClass)
	}
}

// nextHold returns the length of the next hold, and counts it. The caller holds a.mu.
func (a *Availability) nextHold(f *failing) time.Duration {
	length := min(a.Least, a.Most)
	for range f.holds {
		length = min(2*length, a.Most)
	}
	f.holds++
	return length
}
