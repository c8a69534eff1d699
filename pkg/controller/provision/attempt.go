package provision

import (
	"cmp"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/carve-csi/carve/pkg/controller/spec"
)

// attempt is what is remembered of a claim until it is bound or gone. It belongs to the worker
// that has the claim, one at a time.
type attempt struct {
	uid  string
	name string // of the volume

	inFlight inFlight
	failures failures
	// reportedNode is the node for which the Event Provisioning was sent. reported says that
	// any Event was: then its success is an Event, too.
	reportedNode string
	reported     bool
	// unreachableSince is when the selected node was first found without uplink, and
	// shortageSince when the claims of the Pod were first found not to fit there together.
	unreachableSince, shortageSince time.Time
	// podUnseenSince is when the claim was found to have a selected node and no Pod.
	podUnseenSince time.Time
	// full are nodes that had too little free space, for immediate binding.
	full map[string]time.Time
	// protects is the claim (namespace/name) that is protected while this one is made of it.
	protects string
	// wasBound says that the claim named its PersistentVolume at some time: what
	// becomes of the volume is then for the reclaim policy to say, not for us.
	wasBound bool
	written  written
	warning  warning
}

// inFlight are the nodes that may hold the volume while no PersistentVolume names it: the
// outcome of a create there is unknown.
type inFlight struct {
	nodes map[string]struct{}
	// adopted is the one of them that the claim had selected when this process began to lead,
	// until this process has asked it for the volume.
	adopted string
}

// add notes that a node is asked for the volume, and returns whether it had been before.
func (f *inFlight) add(node string) (before bool) {
	_, before = f.nodes[node]
	f.nodes[node], f.adopted = struct{}{}, ""
	return before
}

// adopt notes that an earlier leader may have asked a node for the volume.
func (f *inFlight) adopt(node string) { f.nodes[node], f.adopted = struct{}{}, node }

func (f *inFlight) has(node string) bool { _, is := f.nodes[node]; return is }

// end notes that the outcome is known: the node does not hold the volume, or its
// PersistentVolume names the node.
func (f *inFlight) end(node string) { delete(f.nodes, node) }

// asked reports whether this process asked a node for the volume, with an unknown outcome.
func (f *inFlight) asked() bool {
	for node := range f.nodes {
		if node != f.adopted {
			return true
		}
	}
	return false
}

// failures count what failed in a row.
type failures struct {
	// unanswered counts creates with an unknown outcome, unsaved volumes that were made and
	// whose PersistentVolume could not be, and internal failures of the selected node.
	unanswered, unsaved, internal int
	// blamed is the node against which the claim's failures count: one that fails on
	// several nodes says nothing about the others.
	blamed string
	// refused are the nodes that could not make the claim's file system.
	refused map[string]bool
	// leaving is why the claim is to be rescheduled from the node that it selected, once
	// the node's lowered capacity can be seen; nil for not at all.
	leaving *departure
}

// blame reports whether the claim's failure on a node counts against the node: with a claim
// that fails on several nodes, it does on the first one only, so that a claim with which every
// node fails does not hold them all back.
func (f *failures) blame(node string) bool {
	f.blamed = cmp.Or(f.blamed, node)
	return f.blamed == node
}

// refuse notes that a node could not make the claim's file system.
func (f *failures) refuse(node string) {
	if f.refused == nil {
		f.refused = map[string]bool{}
	}
	f.refused[node] = true
}

// departure is that a claim is to be rescheduled from a node.
type departure struct {
	node string
	why  error
}

// written is the PersistentVolume that was created, which the cache may not have yet.
type written struct {
	pv *v1.PersistentVolume
	at time.Time
}

// warning is the last Event of that type.
type warning struct {
	message string
	at      time.Time
}

// attempts has the attempt at each claim, and the claim's selection, which informers note. Its
// methods are safe for concurrent use; the attempts that it returns are their worker's.
type attempts struct {
	mu    sync.Mutex
	byUID map[string]*claimRecord
}

type claimRecord struct {
	selection
	attempt *attempt
}

// selection is what was noted of a claim as it changed.
type selection struct {
	// began is when the claim was first seen.
	began time.Time
	// node is the selected one, and selectedAt since when; zero once that was measured.
	node       string
	selectedAt time.Time
	// rescheduledAs is the claim's resource version after it was rescheduled: what is
	// older still shows the selection that was taken back.
	rescheduledAs string
	// sourceSeen says that it was found out whether the claim's source needs protection.
	sourceSeen bool
}

func newAttempts() *attempts { return &attempts{byUID: map[string]*claimRecord{}} }

// stale reports whether the claim is as it was before it was rescheduled.
func (s *selection) stale(claim *v1.PersistentVolumeClaim) bool {
	if s.rescheduledAs == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(claim.ResourceVersion, s.rescheduledAs)
	return err == nil && order < 0
}

// note begins an attempt at a claim, if there is none, and notes which node a claim that binds
// late has selected. It returns false where the claim is stale.
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

// get returns the attempt at a claim and the claim's selection, or nil.
func (t *attempts) get(uid string) (*attempt, selection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.byUID[uid]; r != nil {
		return r.attempt, r.selection
	}
	return nil, selection{}
}

// change changes a claim's selection, if there is an attempt at the claim.
func (t *attempts) change(uid string, change func(*selection)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.byUID[uid]; r != nil {
		change(&r.selection)
	}
}

// selectNode notes a node that was selected by this process.
func (t *attempts) selectNode(uid, node string, now time.Time) {
	t.change(uid, func(s *selection) {
		if s.node != node {
			s.node, s.selectedAt = node, now
		}
	})
}

// sawSource notes that it was found out whether the source of a claim needs protection.
func (t *attempts) sawSource(uid string) {
	t.change(uid, func(s *selection) { s.sourceSeen = true })
}

func (t *attempts) forget(uid string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byUID, uid)
}
