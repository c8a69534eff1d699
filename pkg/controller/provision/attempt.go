package provision

import (
	"cmp"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/carve-csi/carve/pkg/controller/spec"
)

// attempt is the memory of a claim until it is bound or gone. It belongs to the worker that
// has the claim, one at a time.
type attempt struct {
	uid  string
	name string // of the volume

	inFlight inFlight
	failures failures
	// reportedNode is the node of the Event Provisioning. After any Event (reported), success
	// is reported, too.
	reportedNode string
	reported     bool
	// Zero while the selected node has an uplink, and the claims of the Pod fit there.
	unreachableSince, shortageSince time.Time
	podUnseenSince                  time.Time
	// full are nodes that had too little free space, with the time; for immediate binding.
	full     map[string]time.Time
	protects string
	// wasBound: the claim named its PersistentVolume once, so the reclaim policy decides about
	// the volume.
	wasBound bool
	// cleared counts the bytes that a node had cleared at the end of the last call.
	cleared int64
	written written
	warning warning
}

// inFlight are the nodes that may hold the volume while no PersistentVolume names it.
type inFlight struct {
	nodes map[string]struct{}
	// adopted is the node that was selected when this process began to lead, until this
	// process asks a node for the volume.
	adopted string
}

func (f *inFlight) add(node string) (before bool) {
	_, before = f.nodes[node]
	f.nodes[node], f.adopted = struct{}{}, ""
	return before
}

func (f *inFlight) adopt(node string) { f.nodes[node], f.adopted = struct{}{}, node }

func (f *inFlight) has(node string) bool { _, is := f.nodes[node]; return is }

// end records a known outcome: the node does not hold the volume, or the PersistentVolume
// names it.
func (f *inFlight) end(node string) { delete(f.nodes, node) }

func (f *inFlight) asked() bool {
	for node := range f.nodes {
		if node != f.adopted {
			return true
		}
	}
	return false
}

type failures struct {
	// In a row: creates with an unknown outcome, failed writes of the PersistentVolume, and
	// internal failures of the selected node.
	unanswered, unsaved, internal int
	// blamed is the only node against which the claim's failures count.
	blamed string
	// refused are the nodes that could not make the file system.
	refused map[string]bool
	// leaving waits until the node's lowered capacity can be seen; nil for no departure.
	leaving *departure
}

// blame reports whether a failure counts against the node: only on the first one that fails,
// so that a bad claim does not hold all nodes back.
func (f *failures) blame(node string) bool {
	f.blamed = cmp.Or(f.blamed, node)
	return f.blamed == node
}

func (f *failures) refuse(node string) {
	if f.refused == nil {
		f.refused = map[string]bool{}
	}
	f.refused[node] = true
}

type departure struct {
	node string
	why  error
}

type written struct {
	pv *v1.PersistentVolume
	at time.Time
}

type warning struct {
	message string
	at      time.Time
}

// attempts is safe for concurrent use; the attempts that it returns are their worker's.
type attempts struct {
	mu    sync.Mutex
	byUID map[string]*claimRecord
}

type claimRecord struct {
	selection
	attempt *attempt
}

// selection is what informers recorded of a claim.
type selection struct {
	began time.Time
	// selectedAt is zero once the time to bind was measured.
	node       string
	selectedAt time.Time
	// rescheduledAs is the claim's resource version after it was rescheduled; older versions
	// still show the removed selection.
	rescheduledAs string
	// sourceSeen: a worker has found whether the claim's source needs protection.
	sourceSeen bool
}

func newAttempts() *attempts { return &attempts{byUID: map[string]*claimRecord{}} }

func (s *selection) stale(claim *v1.PersistentVolumeClaim) bool {
	if s.rescheduledAs == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(claim.ResourceVersion, s.rescheduledAs)
	return err == nil && order < 0
}

// note starts an attempt if needed and records the selected node, for late binding only. It
// returns false if the claim is stale.
func (t *attempts) note(claim *v1.PersistentVolumeClaim, late bool, node string, now time.Time) (*attempt, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	uid := string(claim.UID)
	r := t.byUID[uid]
	if r == nil {
		r = &claimRecord{selection{began: now}, &attempt{uid: uid, name: spec.VolumeName(claim), inFlight: inFlight{nodes: map[string]struct{}{}}, full: map[string]time.Time{}}}
		t.byUID[uid] = r
	}
	if r.stale(claim) {
		return r.attempt, false
	}
	if late && r.node != node {
		r.node, r.selectedAt = node, now
	}
	return r.attempt, true
}

func (t *attempts) get(uid string) (*attempt, selection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.byUID[uid]; r != nil {
		return r.attempt, r.selection
	}
	return nil, selection{}
}

func (t *attempts) change(uid string, change func(*selection)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.byUID[uid]; r != nil {
		change(&r.selection)
	}
}

func (t *attempts) selectNode(uid, node string, now time.Time) {
	t.change(uid, func(s *selection) {
		if s.node != node {
			s.node, s.selectedAt = node, now
		}
	})
}

func (t *attempts) sawSource(uid string) {
	t.change(uid, func(s *selection) { s.sourceSeen = true })
}

func (t *attempts) forget(uid string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byUID, uid)
}
