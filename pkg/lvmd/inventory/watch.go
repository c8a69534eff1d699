package inventory

import (
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// maxPendingExtra bounds the pending changes of a slow reader beyond the number of volumes. With
// more it gets the full state again.
const maxPendingExtra = 1024

// maxRemovals bounds the removals remembered for watchers that resume.
const maxRemovals = 1024

type removal struct {
	id         string
	generation uint64
}

// note records a change in the current generation, for watchers that resume.
func (m *model) note(v *Volume) {
	if v.rec.Ident.Snapshot {
		return
	}
	v.changed = m.generation
	if v.removed || m.volumes[v.rec.ID] == v && v.rec.Phase != spec.Deleting {
		return
	}
	v.removed = true
	if len(m.removals) == maxRemovals {
		m.horizon = m.removals[0].generation
		m.removals = m.removals[1:]
	}
	m.removals = append(m.removals, removal{v.rec.ID, m.generation})
}

// Watch returns a watcher, to be ended with End. It resumes after a generation of this run of lvmd
// if the changes since are known, and starts with the full state otherwise.
func (m *Inventory) Watch(epoch string, generation uint64) *Watcher {
	m.lock()
	defer m.unlock()
	w := newWatcher(m.model)
	m.watchers[w] = struct{}{}
	if epoch != m.epoch || generation < m.horizon || generation > m.generation {
		return w
	}
	w.full = false
	for _, c := range m.classes {
		if c.changed > generation {
			w.classes[c.Name] = struct{}{}
		}
	}
	for id, v := range m.volumes {
		if v.changed > generation {
			w.volumes[id] = struct{}{}
		}
	}
	for _, r := range m.removals {
		if r.generation > generation {
			w.volumes[r.id] = struct{}{}
		}
	}
	return w
}

// Watcher is one reader of changes. It records which objects changed, not the changes, so that a
// slow reader takes no more memory than the number of volumes requires.
type Watcher struct {
	m       *model
	full    bool
	volumes map[string]struct{}
	classes map[string]struct{}
	// wake has one element when there is something to send.
	wake chan struct{}
}

// Wake receives when Next has news.
func (w *Watcher) Wake() <-chan struct{} { return w.wake }

// End ends the watcher.
func (w *Watcher) End() {
	m := w.m
	m.lock()
	defer m.unlock()
	delete(m.watchers, w)
}

func newWatcher(m *model) *Watcher {
	w := &Watcher{m: m, wake: make(chan struct{}, 1)}
	w.markFull()
	return w
}

func (w *Watcher) markFull() {
	w.full, w.volumes, w.classes = true, map[string]struct{}{}, map[string]struct{}{}
	w.signal()
}

func (w *Watcher) mark(total int, classes []string, volumes []*Volume) {
	if w.full {
		return
	}
	for _, c := range classes {
		w.classes[c] = struct{}{}
	}
	for _, v := range volumes {
		if !v.rec.Ident.Snapshot {
			w.volumes[v.rec.ID] = struct{}{}
		}
	}
	if len(w.volumes) > total+maxPendingExtra {
		w.markFull()
	}
	w.signal()
}

func (w *Watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Next returns the message that brings the reader up to date. It drains the signal of a change that
// came after the reader woke and is in this message, or the reader would wake once more to send
// nothing under the same generation.
func (w *Watcher) Next() *lvmdv1.WatchResponse {
	m := w.m
	m.lock()
	defer m.unlock()
	select {
	case <-w.wake:
	default:
	}
	r := &lvmdv1.WatchResponse{Epoch: m.epoch, Generation: m.generation, Full: w.full}
	for _, c := range m.classes {
		_, changed := w.classes[c.Name]
		switch {
		case !w.full && !changed:
		case c.reported != nil:
			r.Classes = append(r.Classes, c.reported)
		case !w.full:
			r.RemovedClasses = append(r.RemovedClasses, c.Name)
		}
	}
	if w.full {
		for _, v := range m.volumes {
			if v.rec.Phase != spec.Deleting && !v.rec.Ident.Snapshot {
				r.Volumes = append(r.Volumes, v.proto())
			}
		}
	}
	for id := range w.volumes {
		if v := m.volumes[id]; v != nil && v.rec.Phase != spec.Deleting {
			r.Volumes = append(r.Volumes, v.proto())
		} else {
			r.RemovedVolumeIds = append(r.RemovedVolumeIds, id)
		}
	}
	w.full = false
	clear(w.volumes)
	clear(w.classes)
	return r
}
