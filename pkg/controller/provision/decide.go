package provision

import (
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/volume"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/scheduler"
)

// claimState is what decide is given: a claim, and all that the next action depends on,
// as it was read at one time. provisioner.observe fills it.
type claimState struct {
	now time.Time
	// claim is nil for one that does not exist any more. stale says that the cache still
	// shows it as it was before it was rescheduled.
	claim *v1.PersistentVolumeClaim
	stale bool
	// volume is the name that the claim's volume has, and its PersistentVolume, which is
	// nil until it exists.
	volume string
	pv     *v1.PersistentVolume
	// class is nil where the claim's StorageClass is not one of this driver.
	class *storagev1.StorageClass
	// request is what the claim asks for, invalid why it cannot be provisioned.
	request spec.Request
	invalid error
	// waited is for how long the claim has been known.
	waited time.Duration
	// source says why request.from was not found, for a claim that has a data source.
	source error
	// attributes says why the limits of its VolumeAttributesClass are not known.
	attributes error
	// unsatisfiable says why no node can ever take a claim that has no node.
	unsatisfiable error
	// placedOn is the node of a Pod that is there already and waits for a claim that has no node.
	placedOn string
	// target is the node on which the volume is to be made.
	target target
	// suspects are the other nodes that may hold a volume of the claim.
	suspects []string
}

// target is what is known of the node on which a claim's volume is to be made.
type target struct {
	// name is empty where no node was selected yet.
	name string
	// view is what the node reports; nil while it is not connected. Then gone says that
	// its Node object is deleted or out of service, and unreachable for how long it has
	// been without uplink.
	view        *fleet.View
	gone        bool
	unreachable time.Duration
	// object is nil where the cache has no Node object.
	object *v1.Node
	// mayHold says that the node may have made the volume already.
	mayHold bool
	// awaitsPod says that the claim's Pod is not seen yet.
	awaitsPod bool
	// leaving says why the claim is to be rescheduled from the node, shortage why the claims
	// of its Pod do not fit there together. Either may be nil.
	leaving  error
	shortage *shortage
}

// shortage is that the claims of a Pod do not fit on a node together.
type shortage struct {
	why error
	// reserve are the reservations that make the node seem as small as it is for them.
	reserve []scheduler.Reservation
}

// verb is what is to be done for a claim.
type verb int

const (
	// wait does nothing until an event, or until action.again has passed. A reason is
	// reported by an Event.
	wait verb = iota
	// abandon removes what may have been made for the claim, and forgets it.
	abandon
	// finish looks after a claim whose PersistentVolume exists.
	finish
	// reject reports a claim that cannot be provisioned as it is.
	reject
	// retry fails with the reason, for another attempt soon.
	retry
	// place selects a node for a claim that binds immediately, and decides again.
	place
	// selectSourceNode selects the node of the claim's data source.
	selectSourceNode
	// selectPlaced selects the node of a Pod that is there already.
	selectPlaced
	// clearSuspects removes the volume from the suspects, and decides again.
	clearSuspects
	// reschedule asks the scheduler for another node.
	reschedule
	// rescheduleLowered does so once the node's lowered capacity can be seen.
	rescheduleLowered
	// create asks the node for the volume.
	create
)

// reservationChange is what an action does to the claim's reservation before all else.
type reservationChange int

const (
	keepReservation reservationChange = iota
	renewReservation
	dropReservation
)

// action is what decide has chosen.
type action struct {
	do verb
	// node is what the action is about, where that is a node.
	node string
	// why is for the user, or the error of a retry.
	why error
	// again is when to decide again without an event; zero for never.
	again time.Duration
	// reservation is done first. releaseSource then ends the protection of the source.
	reservation   reservationChange
	releaseSource bool
	// gone says that node cannot hold a volume any more.
	gone bool
	// rejected counts why as a rejection, where it is reported.
	rejected bool
	// reserve are reservations to make before the claim is rescheduled.
	reserve []scheduler.Reservation
}

// decide chooses what to do next for a claim. It is a pure function: it reads nothing but
// the state and changes nothing. docs/explanation/claims.md draws what it decides.
func decide(s claimState) action {
	switch claim := s.claim; {
	case claim == nil:
		return action{do: abandon, reservation: dropReservation}
	case s.stale:
		return action{} // the newer one is an event
	case claim.DeletionTimestamp != nil && claim.Spec.VolumeName == "",
		claim.Spec.VolumeName != "" && claim.Spec.VolumeName != s.volume: // bound to another volume
		return action{do: abandon, reservation: dropReservation}
	case s.class == nil:
		return action{} // its coming back is an event
	case s.pv != nil:
		return action{do: finish}
	case claim.Spec.VolumeName != "" || spec.ForPopulator(claim):
		return action{} // the user asked for a volume that does not exist, or it is a populator's
	case s.invalid != nil:
		return action{do: reject, why: s.invalid}
	case provisionedByOthers(claim):
		return action{}
	case s.attributes != nil:
		return decideNotReady(s, s.attributes)
	case s.request.Source != nil:
		return decideClone(s)
	case spec.BindsLate(s.class):
		return decideDelayed(s)
	}
	return decideImmediate(s)
}

// decideDelayed is decide for a claim that the scheduler selects a node for.
func decideDelayed(s claimState) action {
	if len(s.suspects) > 0 {
		return action{do: clearSuspects, node: s.target.name}
	}
	if s.target.name == "" && s.placedOn != "" {
		return action{do: selectPlaced, node: s.placedOn}
	}
	if s.target.name == "" {
		// An attempt that read an older claim may have reserved.
		if left := WarnAfter - s.waited; left > 0 {
			return action{again: left, reservation: dropReservation}
		}
		return action{again: warnEvery, reservation: dropReservation, why: s.unsatisfiable, rejected: true}
	}
	if s.target.view == nil {
		return decideUnreachable(s.target)
	}
	return decideSelected(s)
}

// decideSelected is decide for a claim whose selected node is connected.
func decideSelected(s claimState) action {
	on := s.target
	out := action{do: reschedule, node: on.name, reservation: renewReservation}
	_, hasClass := on.view.Class(s.request.DeviceClass)
	switch {
	case on.leaving != nil:
		out.do, out.why = rescheduleLowered, on.leaving
	case !hasClass:
		out.why = noSuchClass(s.class, s.request.DeviceClass, on.view)
	case on.object != nil && !spec.AllowedBy(s.class.AllowedTopologies, on.object):
		// The scheduler keeps to it, but other programs select nodes, too.
		out.why = &spec.InvalidError{Field: "metadata.annotations[" + volume.AnnSelectedNode + "]", Given: "node " + on.name,
			Allowed: fmt.Sprintf("nodes that StorageClass %s allows (allowedTopologies)", s.class.Name)}
	case on.awaitsPod:
		out.do, out.again = wait, podPoll
	case on.shortage != nil:
		out.do, out.why, out.reserve = rescheduleLowered, on.shortage.why, on.shortage.reserve
	default:
		return decideCreate(s)
	}
	return out
}

// decideUnreachable is decide for a claim whose selected node is not connected: it waits,
// and is rescheduled in the end, unless the node may hold a volume that no other
// component knows of.
func decideUnreachable(on target) action {
	out := action{do: reschedule, node: on.name, reservation: renewReservation}
	left := RescheduleUnreachable - on.unreachable
	switch {
	case on.gone:
		out.gone, out.why = true, fmt.Errorf("node %s is not in the cluster any more, or out of service", on.name)
	case left > 0:
		out.do, out.again = wait, left
	case on.mayHold:
		out.do, out.again = wait, warnEvery
		out.why = fmt.Errorf("node %s is not connected to the carve controller and may have made the volume already; %s", on.name, cluster.OutcomeUnknownAdvice)
	default:
		out.why = fmt.Errorf("%w for %s; is its carve agent running?", &fleet.NotConnectedError{Node: on.name}, RescheduleUnreachable)
	}
	return out
}

// decideImmediate is decide for a claim that binds without waiting for a Pod. As with the
// upstream provisioner, the PV controller speaks first: it looks for a volume that exists,
// and asks for a new one by annotation.
func decideImmediate(s claimState) action {
	asked := s.claim.Annotations
	switch {
	case asked[volume.AnnStorageProvisioner] != names.Driver && asked[volume.AnnBetaStorageProvisioner] != names.Driver:
		return action{}
	case s.target.name == "":
		return action{do: place}
	case len(s.suspects) > 0:
		return action{do: clearSuspects, node: s.target.name}
	}
	return decideCreate(s)
}

// decideClone is decide for a claim that is made of another volume. Where that one is, is
// where the claim's volume will be, whatever node the scheduler has selected.
func decideClone(s claimState) action {
	from := s.request.From
	if from == nil {
		return decideNotReady(s, s.source)
	}
	switch {
	case spec.BindsLate(s.class) && s.claim.Annotations[volume.AnnSelectedNode] != from.Node:
		return action{do: selectSourceNode, node: from.Node}
	case len(s.suspects) > 0:
		return action{do: clearSuspects, node: from.Node}
	case s.target.view == nil:
		return decideSourceUnreachable(s.target, from)
	}
	if err := suits(s.class, s.request, s.target.view); err != nil {
		return decideNotReady(s, err)
	}
	return decideCreate(s)
}

// decideNotReady waits for a data source or a VolumeAttributesClass that is not there yet, and
// rejects what can never be.
func decideNotReady(s claimState, why error) action {
	var invalid *spec.InvalidError
	if errors.As(why, &invalid) {
		return action{do: reject, why: why}
	}
	out := action{reservation: dropReservation, releaseSource: true}
	var missing *notReadyError
	left := WarnAfter - s.waited
	switch {
	case !errors.As(why, &missing):
		out.do, out.why = retry, why
	case left > 0:
		out.again = min(left, lookForSoon) // what comes together need not be in order
	default:
		out.again, out.why = lookForSource, why
	}
	return out
}

// decideSourceUnreachable waits for the node of a data source to connect.
func decideSourceUnreachable(on target, from *spec.Origin) action {
	left := RescheduleUnreachable - on.unreachable
	switch {
	case on.gone:
		return action{node: on.name, gone: true, reservation: dropReservation, releaseSource: true, again: warnEvery,
			why: fmt.Errorf("node %s, which held %s, is not in the cluster any more, or out of service; "+
				"delete this claim, unless the node comes back", on.name, from.What)}
	case left > 0:
		return action{node: on.name, reservation: renewReservation, again: left}
	}
	return action{node: on.name, reservation: renewReservation, again: warnEvery,
		why: fmt.Errorf("node %s, which holds %s, is not connected to the carve controller; waiting for it: %s", on.name, from.What, cluster.NotConnectedAdvice)}
}

// decideCreate asks the node, unless the file system cannot be on its medium.
func decideCreate(s claimState) action {
	if s.target.view != nil && s.request.Mode == lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM {
		if on, ok := s.target.view.Class(s.request.DeviceClass); ok {
			if err := s.request.FileSystem.Suits(s.class, on); err != nil {
				return action{do: reject, why: err}
			}
		}
	}
	return action{do: create, node: s.target.name, reservation: renewReservation}
}

// answer is what decideAnswer is given: a node's failure to create a claim's volume, and all that
// the next action depends on.
type answer struct {
	node  string
	cause error
	// wrong says that the node answered with another volume, or with another volume's id.
	wrong bool
	// class is the name of the StorageClass.
	class string
	// cloned says that the claim has a data source: its volume can be on no other node.
	cloned bool
	// selected says that the claim names the node.
	selected bool
	// mayHold says that the node may hold the volume, by an earlier create where this one was not sent.
	mayHold bool
	// undone says that the node removed what it may have made.
	undone bool
	// noneLeft says that no other node can take the claim.
	noneLeft bool
	// unanswered and internal are the claim's failures before, as in failures.
	unanswered, internal int
}

// isUnknown reports whether the node may have made the volume nevertheless.
func (s answer) isUnknown() bool { return !s.wrong && fleet.MayHaveHappened(s.cause) }

// mustUndo reports whether the node is to remove what it may have made, so that the volume can be
// made elsewhere: LVM's commands were killed there again and again. LVM may answer other commands
// there: lvmd offers the volume group on then.
func (s answer) mustUndo() bool {
	return s.isUnknown() && fleet.Reason(s.cause) == names.ReasonCommandTimedOut && !s.cloned && s.unanswered+1 >= cluster.FailuresToHold
}

func (s answer) cannotFormat() bool { return fleet.Reason(s.cause) == names.ReasonFormatRefused }

// answerAction is what decideAnswer has chosen. Its verb is retry, reschedule, rescheduleLowered,
// clearSuspects, or wait, which decides again at once.
type answerAction struct {
	action
	// says is a warning for the user, if not empty.
	says string
	// refused says that the node could not make the claim's file system.
	refused bool
	// unanswered and internal are the claim's failures from now on.
	unanswered, internal int
}

// elsewhereReasons are those of a node that cannot make a volume which another may make.
var elsewhereReasons = []string{names.ReasonNoSpace, names.ReasonClassNotFound, names.ReasonDeviceMissing, names.ReasonNotResponding, names.ReasonCommandTimedOut}

// decideAnswer chooses what to do after a node did not create a claim's volume. It is as pure as decide.
func decideAnswer(s answer) answerAction {
	const askingAgain = "; asking it again"
	reason, refusal := fleet.Reason(s.cause), cluster.Refusal(s.node, s.cause)
	out := answerAction{action: action{do: retry, node: s.node, why: s.cause}, internal: s.internal}
	switch {
	case s.wrong && s.cloned:
		out.says = s.cause.Error()
	case s.wrong: // Asked again, it would answer so again. What it may have made is removed as a stray.
		return decideElsewhere(s, s.cause)
	case s.isUnknown() && !s.undone:
		out.unanswered = s.unanswered + 1
		if out.unanswered > 1 { // Of a hiccup nothing is left when the next attempt succeeds.
			out.says = unanswered(s.node, s.cause)
		}
	case fleet.IsNotConnected(s.cause):
		out.do, out.why = wait, nil
	case fleet.NotSent(s.cause) && s.mayHold:
		out.says = refusal + askingAgain
	case reason == names.ReasonRequestDiffers:
		// Made for this claim under other parameters (the class was replaced), and no
		// PersistentVolume names it.
		out.do, out.why = clearSuspects, nil
	case s.cloned:
		out.gone, out.releaseSource, out.says = true, true, refusal+sourceAdvice[reason]+askingAgain
	case reason == names.ReasonCommandFailed || s.cannotFormat():
		out.gone, out.internal = true, s.internal+1
		switch {
		case out.internal < cluster.FailuresToHold:
			out.says = refusal + askingAgain
		case s.cannotFormat() && s.noneLeft:
			out.refused = true
			out.says = refusal + "; there is no other node to try: delete the claim, and make StorageClass " + s.class + " again with other parameters" + askingAgain
		default:
			return decideElsewhere(s, errors.New(refusal))
		}
	case fleet.NotSent(s.cause) || slices.Contains(elsewhereReasons, reason):
		return decideElsewhere(s, errors.New(refusal))
	default:
		out.gone, out.says = true, refusal+askingAgain
	}
	return out
}

// decideElsewhere leaves a node that does not have the volume. If the node is to blame, the scheduler
// must see first that it is held back. A refused file system counts against the claim alone: another node
// may have other disks.
func decideElsewhere(s answer, why error) answerAction {
	out := answerAction{action: action{do: reschedule, node: s.node, why: why, gone: true}, refused: s.cannotFormat()}
	if fault, _ := cluster.NodeFault(s.cause); s.selected && (fault || out.refused) {
		out.do = rescheduleLowered
	}
	return out
}
