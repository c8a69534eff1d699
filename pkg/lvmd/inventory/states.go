package inventory

import (
	"fmt"

	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// State is where a volume is between its admission and its end. docs/explanation/volumes.md
// draws the transitions.
type State string

const (
	// New is before the inventory has the volume.
	New State = ""
	// Creating is a new volume that a creation has.
	Creating State = "creating"
	// Reformatting is an encrypted volume that a creation has, which formats it with another key.
	Reformatting State = "reformatting"
	// Interrupted is a creation that ended in the middle, with the run of lvmd that had it.
	Interrupted State = "interrupted"
	// Ready is a volume that can be used.
	Ready State = "ready"
	// Unfinished is a volume that may have been handed out, and whose file system, or header, was
	// not found.
	Unfinished State = "unfinished"
	// KeyLost is an encrypted volume whose key is gone, and what it held with it.
	KeyLost State = "keyLost"
	// Expanding is a claim, as Noting, Checking and Deleting are: one operation has the volume,
	// and it goes back to the state in which it was claimed unless the operation leads elsewhere.
	Expanding State = "expanding"
	// Noting is the claim of the record that the node has encrypted the volume, or that it is kept.
	Noting State = "noting"
	// Checking is the claim of the search for what is missing: the encrypted device, or the end
	// of its making in the journal.
	Checking State = "checking"
	// Deleting is the claim of a deletion.
	Deleting State = "deleting"
	// Deleted is a tombstone in the journal.
	Deleted State = "deleted"
	// Marked is a tombstone that LVM's metadata shows, and that is to be wiped.
	Marked State = "marked"
	// Wiped is a tombstone that is only to be removed.
	Wiped State = "wiped"
	// Gone is after LVM has the volume no more. Nothing leads out of it: an operation that is
	// still under way ends without effect.
	Gone State = "gone"
)

// isClaim reports whether one operation has the volume.
func (s State) isClaim() bool {
	return s == Expanding || s == Noting || s == Checking || s == Deleting
}

// isCreation reports whether a creation has the volume.
func (s State) isCreation() bool { return s == Creating || s == Reformatting }

// Transition is one allowed change of state, and what causes it.
type Transition struct {
	From, To State
	Cause    string
}

// Transitions are all that are allowed, but for two rules: a claim may be released, which
// leads back to the state in which it was taken; and a volume that no creation has may
// vanish from LVM, which leads to Gone.
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

// phaseOf is what the journal keeps of a state. It is empty for New and Gone, and for claims,
// which leave the phase as it is.
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

// recalled is the state of a volume that the journal has in a phase.
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

// TransitionError says that a volume entered a state that it must not enter from the one
// before: a defect.
type TransitionError struct{ From, To State }

// Error implements error.
func (e *TransitionError) Error() string {
	return fmt.Sprintf("state %q is entered from %q, which is not allowed", e.To, e.From)
}

// lifecycle is the state of one volume. The zero value is of a volume that is New. It is not
// safe for concurrent use.
type lifecycle struct {
	state, claimedIn State
}

// enter changes the state. A change that is not allowed is made all the same, since what it
// stands for has happened, and is a *TransitionError. Out of Gone there is none: enter does
// nothing then.
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

// mayEnter reports whether the table or one of the rules allows a state.
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

// released is the state that the end of a claim leads back to, or that of a volume that is
// not claimed.
func (l *lifecycle) released() State {
	if l.state.isClaim() {
		return l.claimedIn
	}
	return l.state
}

// begun is the state in which a creation has the volume that has been idle before.
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

// ended is the state of a volume that a creation has no more, unless it led elsewhere.
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
