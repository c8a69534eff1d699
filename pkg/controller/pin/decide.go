package pin

import (
	"slices"
	"time"
)

// state is what decide is given: a PersistentVolume that was made without nodeAffinity, and all
// that the next action depends on.
type state struct {
	// node has the volume.
	node string
	// pinned says that there is a nodeAffinity by now.
	pinned bool
	// stays says that the volume is no longer one of those that may move, whatever its Pod does.
	stays bool
	// bound says that the claim is: before, the scheduler goes by the node that it selected.
	bound bool
	// pods are those that have not started and use the claim.
	pods []pod
	// unplaced is for how long the claim has been known to be bound, and its owner to have no node.
	unplaced time.Duration
	// grace is how long a Pod usually has no node yet after its claim was bound.
	grace time.Duration
}

// pod is a Pod that has not started.
type pod struct {
	// owner says that the claim is this Pod's generic ephemeral volume.
	owner bool
	// node is empty where it has none yet.
	node string
}

func (p pod) unplacedOwner() bool { return p.owner && p.node == "" }

// action is what decide has chosen.
type action struct {
	// pin says why the volume gets a nodeAffinity: a reason of metrics, or nothing.
	pin string
	// misplaced are other nodes that Pods wait on for the volume.
	misplaced []string
	// again is when to decide again without an event; zero for never.
	again time.Duration
}

// decide chooses what to do for a volume. It is a pure function: it reads nothing but the state
// and changes nothing. A nodeAffinity cannot be taken back: it comes where a Pod may yet be bound
// to a wrong node, and only there.
func decide(s state) action {
	var out action
	for _, p := range s.pods {
		if p.node != "" && p.node != s.node && !slices.Contains(out.misplaced, p.node) {
			out.misplaced = append(out.misplaced, p.node)
		}
	}
	switch {
	case s.pinned:
	case s.stays:
		out.pin = reasonStays
	case len(out.misplaced) > 0:
		out.pin = reasonMisplaced // The kubelet there says so, too.
	case slices.ContainsFunc(s.pods, func(p pod) bool { return !p.owner }):
		out.pin = reasonShared // It can use the volume there only, and may outlive the owner's binding.
	case !s.bound || !slices.ContainsFunc(s.pods, pod.unplacedOwner):
	case s.unplaced < s.grace:
		out.again = s.grace - s.unplaced
	default:
		out.pin = reasonUnplaced
	}
	return out
}
