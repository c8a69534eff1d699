package pin

import (
	"slices"
	"time"
)

// state is the input of decide about a PersistentVolume that was created without nodeAffinity.
type state struct {
	node   string
	pinned bool
	// stays means that the volume may no longer move, whatever its Pod does.
	stays bool
	// bound means that the claim is bound. Before that, the scheduler obeys the selected node.
	bound bool
	// pods use the claim and have not started.
	pods []pod
	// unplaced is how long the claim has been bound while its owner had no node.
	unplaced time.Duration
	// grace is how long a Pod may lack a node after its claim was bound.
	grace time.Duration
}

type pod struct {
	// owner means that the claim is this Pod's generic ephemeral volume.
	owner bool
	// node may be empty.
	node string
}

func (p pod) unplacedOwner() bool { return p.owner && p.node == "" }

type action struct {
	// pin is the reason for a nodeAffinity (a metrics label), or "".
	pin string
	// misplaced holds other nodes on which Pods wait for the volume.
	misplaced []string
	// again is when to decide again without an event; zero means never.
	again time.Duration
}

// decide chooses the action for a volume. It depends on s alone. It pins a volume only if a Pod may
// still be bound to a wrong node, because a nodeAffinity is permanent.
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
		out.pin = reasonMisplaced // the kubelet there rejects the Pod, too
	case slices.ContainsFunc(s.pods, func(p pod) bool { return !p.owner }):
		out.pin = reasonShared // that Pod can only use the volume there, and may outlive the owner's binding
	case !s.bound || !slices.ContainsFunc(s.pods, pod.unplacedOwner):
	case s.unplaced < s.grace:
		out.again = s.grace - s.unplaced
	default:
		out.pin = reasonUnplaced
	}
	return out
}
