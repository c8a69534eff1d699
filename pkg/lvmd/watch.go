package lvmd

import (
	"context"

	"google.golang.org/grpc"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// maxPendingExtra bounds what a slow reader may have pending beyond the
// number of volumes there are; with more it gets the full state again.
const maxPendingExtra = 1024

// maxRemovals bounds how many removals are remembered for who resumes.
const maxRemovals = 1024

// removal is a volume that is gone, and the generation that told so.
type removal struct {
	id         string
	generation uint64
}

// note remembers for who resumes that a volume changes with this generation. The
// caller holds the lock.
func (m *model) note(v *volume) {
	if v.rec.Ident.Snapshot {
		return
	}
	v.changed = m.generation
	if v.gone || m.volumes[v.rec.ID] == v && v.rec.Phase != deleting {
		return
	}
	v.gone = true
	if len(m.removals) == maxRemovals {
		m.horizon = m.removals[0].generation
		m.removals = m.removals[1:]
	}
	m.removals = append(m.removals, removal{v.rec.ID, m.generation})
}

// resume makes a watcher for who has the state of a generation of this life, if
// what changed since is known, and else for who has nothing. The caller holds the
// lock.
func (m *model) resume(epoch string, generation uint64) *watcher {
	w := newWatcher()
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

// watcher is one reader of changes. It remembers what changed since the last
// message, not the changes themselves, so that a slow reader costs no more
// memory than there are volumes. The model's lock guards it.
type watcher struct {
	full    bool
	volumes map[string]struct{}
	classes map[string]struct{}
	// wake has one element when there is something to send.
	wake chan struct{}
}

func newWatcher() *watcher {
	w := &watcher{wake: make(chan struct{}, 1)}
	w.markFull()
	return w
}

func (w *watcher) markFull() {
	w.full, w.volumes, w.classes = true, map[string]struct{}{}, map[string]struct{}{}
	w.signal()
}

// mark remembers changes. total is the number of volumes there are.
func (w *watcher) mark(total int, classes []string, volumes []*volume) {
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

func (w *watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// next makes the message that brings a reader up to date. It takes back the
// signal of a change that came after the reader woke and is in this message:
// the reader would wake once more, to send nothing under the same generation.
func (m *model) next(w *watcher) *lvmdv1.WatchResponse {
	m.mu.Lock()
	defer m.mu.Unlock()
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
			if v.rec.Phase != deleting && !v.rec.Ident.Snapshot {
				r.Volumes = append(r.Volumes, v.proto())
			}
		}
	}
	for id := range w.volumes {
		if v := m.volumes[id]; v != nil && v.rec.Phase != deleting {
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

// Watch implements lvmdv1.LVMDServer. A stream ends with the caller's context
// or when lvmd stops.
func (s *Service) Watch(r *lvmdv1.WatchRequest, stream grpc.ServerStreamingServer[lvmdv1.WatchResponse]) error {
	s.model.mu.Lock()
	w := s.model.resume(r.GetEpoch(), r.GetGeneration())
	s.model.watchers[w] = struct{}{}
	s.model.mu.Unlock()
	defer func() {
		s.model.mu.Lock()
		delete(s.model.watchers, w)
		s.model.mu.Unlock()
	}()
	for {
		select {
		case <-w.wake:
			if err := stream.Send(s.model.next(w)); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		case <-s.stopping:
			return errStopping
		}
	}
}
