package inventory

import (
	"fmt"

	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// State is where a volume is between its admission and its end. docs/explanation/volumes.md draws
// the transitions.
type State string

const (
	// New is before the inventory has the volume.
	New State = ""
	// Creating means that a creation has the new volume.
	Creating State = "creating"
	// Reformatting means that a creation formats an encrypted volume with another key.
	Reformatting State = "reformatting"
	// Interrupted is a creation that ended with its run of lvmd.
	Interrupted State = "interrupted"
	// Ready is a usable volume.
	Ready State = "ready"
	// Unfinished is a volume that may have been handed out, but whose file system, or header, was
	// not found.
	Unfinished State = "unfinished"
	// KeyLost is an encrypted volume that lost its key, and with that its data.
	KeyLost State = "keyLost"
	// Expanding is a claim, like Noting, Checking and Deleting: one operation has the volume, and
	// returns it to the state before unless it leads elsewhere.
	Expanding State = "expanding"
	// Noting is the claim to record that the node has encrypted the volume, or that it is kept.
	Noting State = "noting"
	// Checking is the claim to search for a missing encrypted device, or for the outcome of a
	// creation that the journal does not have.
	Checking State = "checking"
	// Deleting is the claim of a deletion.
	Deleting State = "deleting"
	// Deleted is a tombstone in the journal.
	Deleted State = "deleted"
	// Marked is a tombstone that LVM's metadata shows, to be wiped.
	Marked State = "marked"
	// Wiped is a tombstone to be removed.
	Wiped State = "wiped"
	// Gone is after the removal from LVM. No transition leads out of it: an operation still under
	// way ends without effect.
	Gone State = "gone"
)

func (s State) isClaim() bool {
	return s == Expanding || s == Noting || s == Checking || s == Deleting
}

func (s State) isCreation() bool { return s == Creating || s == Reformatting }

// Transition is an allowed change of state, and its cause.
type Transition struct {
	From, To State
	Cause    string
}

// Transitions are all that are allowed, except two: releasing a claim leads back to the state
// before, and a volume without a creation may vanish from LVM, which leads to Gone.
var Transitions = []Transition{
	{New, Creating, "a creation is admitted"},
	{New, Interrupted, "an intent is found without its creation"},
	{New, Ready, "it is found"},
	{New, Unfinished, "it is found so in the journal"},
	{New, KeyLost, "it is found so in the journal"},
	{New, Deleted, "a tombstone is found"},
	{Creating, Ready, "it is formatted"},
	{Creating, Interrupted, "lvmd stops during a copy"},
	{Creating, Deleted, "it fails, LVM may have it"},
	{Creating, Gone, "it fails before"},
	{Interrupted, Creating, "a copy is continued"},
	{Interrupted, Deleted, "the creation is undone"},
	{Interrupted, Ready, "it was handed out, by its tags"},
	{Interrupted, Unfinished, "it may have been handed out"},
	{Ready, Unfinished, "no file system is found on it"},
	{Unfinished, Checking, "a start looks for it again"},
	{Unfinished, Ready, "that finds it"},
	{Ready, Expanding, "an expansion claims it"},
	{Ready, Noting, "the node has encrypted it, or a PersistentVolume names it"},
	{Ready, Checking, "something of it is missing"},
	{Checking, Deleted, "it is not complete: it was never handed out"},
	{Checking, Reformatting, "its key is gone"},
	{KeyLost, Checking, "its key was lost before"},
	{Reformatting, Ready, "it is formatted"},
	{Reformatting, KeyLost, "that fails"},
	{Ready, Deleting, "a deletion claims it"},
	{Unfinished, Deleting, "a deletion claims it"},
	{KeyLost, Deleting, "a deletion claims it"},
	{Deleting, Deleted, "the tombstone is durable"},
	{Deleted, Marked, "LVM shows it"},
	{Deleted, Wiped, "it was never handed out"},
	{Marked, Wiped, "it is wiped"},
	{Wiped, Gone, "LVM has removed it"},
}

// phaseOf is empty for New and Gone, and for claims, which keep the phase.
func phaseOf(s State) spec.Phase {
	switch s {
	case Creating, Interrupted:
		return spec.Creating
	case Ready:
		return spec.Ready
	case Unfinished:
		return spec.Unfinished
	case KeyLost, Reformatting:
		return spec.DataLost
	case Deleted, Marked, Wiped:
		return spec.Deleting
	default:
		return ""
	}
}

func recalled(p spec.Phase) State {
	switch p {
	case spec.Creating:
		return Interrupted
	case spec.Unfinished:
		return Unfinished
	case spec.DataLost:
		return KeyLost
	case spec.Deleting:
		return Deleted
	default:
		return Ready
	}
}

// TransitionError means that a forbidden transition occurred: a defect.
type TransitionError struct{ From, To State }

// Error implements error.
func (e *TransitionError) Error() string {
	return fmt.Sprintf("state %q is entered from %q, which is not allowed", e.To, e.From)
}

// lifecycle is New as the zero value, and not safe for concurrent use.
type lifecycle struct {
	state, claimedIn State
}

// enter changes the state. It does so despite a *TransitionError, since the change has happened. It
// does nothing in Gone.
func (l *lifecycle) enter(to State) error {
	from := l.state
	if from == Gone {
		return nil
	}
	var err error
	if !l.mayEnter(to) {
		err = &TransitionError{from, to}
	}
	if to.isClaim() {
		l.claimedIn = from
	}
	l.state = to
	return err
}

func (l *lifecycle) mayEnter(to State) bool {
	for _, t := range Transitions {
		if t.From == l.state && t.To == to {
			return true
		}
	}
	released := l.state.isClaim() && to == l.claimedIn
	vanished := to == Gone && l.state != New && !l.state.isCreation()
	return released || vanished
}

// released returns the state after a claim, or the current one without a claim.
func (l *lifecycle) released() State {
	if l.state.isClaim() {
		return l.claimedIn
	}
	return l.state
}

func (l *lifecycle) begun() State {
	switch l.state {
	case Interrupted:
		return Creating
	case Checking:
		return Reformatting
	default:
		return l.state
	}
}

// ended returns the state once a creation no longer has the volume, unless it led elsewhere.
func (l *lifecycle) ended() State {
	switch l.state {
	case Creating:
		return Interrupted
	case Reformatting:
		return KeyLost
	default:
		return l.state
	}
}
