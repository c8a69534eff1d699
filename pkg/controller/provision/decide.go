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

// claimState is a consistent reading of everything that decide depends on.
type claimState struct {
	now time.Time
	// claim is nil if it no longer exists. stale: the cache still shows it as before its
	// rescheduling.
	claim  *v1.PersistentVolumeClaim
	stale  bool
	volume string
	pv     *v1.PersistentVolume
	// class is nil if the StorageClass is not of this driver.
	class   *storagev1.StorageClass
	request spec.Request
	invalid error
	// waited is the time since the claim was first seen.
	waited     time.Duration
	source     error
	attributes error
	// unsatisfiable says why no node can ever take a claim without a node.
	unsatisfiable error
	// placedOn is the node of a Pod that is placed already, for a claim without a node.
	placedOn string
	target   target
	suspects []string
}

type target struct {
	name string
	// view is nil while the node is not connected: then gone means that its Node object is
	// deleted or out of service, and unreachable is the time without an uplink.
	view        *fleet.View
	gone        bool
	unreachable time.Duration
	// object is nil if the cache has no Node object.
	object *v1.Node
	// mayHold: an earlier create may have made the volume there. Set for unconnected nodes
	// only.
	mayHold bool
	// awaitsPod: the claim's Pod is not seen yet.
	awaitsPod bool
	leaving   error
	shortage  *shortage
}

type shortage struct {
	why error
	// reserve lowers the node's capacity, so that the scheduler cannot select it for these
	// claims.
	reserve []scheduler.Reservation
}

type verb int

const (
	// wait reports a reason, if any, by an Event.
	wait verb = iota
	// abandon removes the claim's volume and forgets the claim.
	abandon
	finish
	reject
	// retry returns the reason as an error, for backoff.
	retry
	// place selects a node for immediate binding; then decide runs again.
	place
	selectSourceNode
	selectPlaced
	// clearSuspects removes the volume from the suspects; then decide runs again.
	clearSuspects
	reschedule
	// rescheduleLowered reschedules once the node's lowered capacity can be seen.
	rescheduleLowered
	create
)

// reservationChange precedes all else in an action.
type reservationChange int

const (
	keepReservation reservationChange = iota
	renewReservation
	dropReservation
)

type action struct {
	do   verb
	node string
	// why is for the user, or the error of a retry.
	why error
	// again is the time to the next decision without an event; zero means never.
	again time.Duration
	// Done in this order.
	reservation   reservationChange
	releaseSource bool
	// gone means that node can no longer hold a volume.
	gone     bool
	rejected bool
	// reserve is reserved before the claim is rescheduled.
	reserve []scheduler.Reservation
}

// decide is pure; docs/explanation/claims.md draws it.
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
		// The scheduler respects them, but other programs select nodes, too.
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

// decideUnreachable never reschedules while the node may hold a volume that only it knows.
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

// decideImmediate waits for the PV controller, as the upstream provisioner does: it first
// looks for an existing volume, then asks for a new one by annotation.
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

// decideClone puts the volume on the source's node, whatever node the scheduler selected.
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

// decideNotReady waits for a missing data source or VolumeAttributesClass, and rejects invalid
// ones.
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
		out.again = min(left, lookForSoon) // objects applied together may arrive in any order
	default:
		out.again, out.why = lookForSource, why
	}
	return out
}

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

// decideCreate rejects a file system that cannot be on the node's medium.
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

// answer is a node's failure to create a volume, with everything that decideAnswer depends on.
type answer struct {
	node  string
	cause error
	// wrong: the node answered with another volume, or with another volume's id.
	wrong bool
	class string
	// cloned: the claim has a data source, so no other node can have its volume.
	cloned   bool
	selected bool
	// mayHold: an earlier create may have made the volume, even if this one was not sent.
	mayHold  bool
	undone   bool
	noneLeft bool
	// Counts before this failure, as in failures.
	unanswered, internal int
}

func (s answer) isUnknown() bool { return !s.wrong && fleet.MayHaveHappened(s.cause) }

// mustUndo reports whether the node must remove the volume so that another one can be asked:
// LVM commands repeatedly timed out there. Removal may succeed, as lvmd keeps the volume group
// in service.
func (s answer) mustUndo() bool {
	return s.isUnknown() && fleet.Reason(s.cause) == names.ReasonCommandTimedOut && !s.cloned && s.unanswered+1 >= cluster.FailuresToHold
}

func (s answer) cannotFormat() bool { return fleet.Reason(s.cause) == names.ReasonFormatRefused }

// answerAction uses the verbs retry, reschedule, rescheduleLowered, clearSuspects, and wait,
// which decides again at once.
type answerAction struct {
	action
	says    string
	refused bool
	// Counts after this failure.
	unanswered, internal int
}

var elsewhereReasons = []string{names.ReasonNoSpace, names.ReasonClassNotFound, names.ReasonDeviceMissing, names.ReasonNotResponding, names.ReasonCommandTimedOut}

// decideAnswer is pure.
func decideAnswer(s answer) answerAction {
	const askingAgain = "; asking it again"
	reason, refusal := fleet.Reason(s.cause), cluster.Refusal(s.node, s.cause)
	out := answerAction{action: action{do: retry, node: s.node, why: s.cause}, internal: s.internal}
	switch {
	case s.wrong && s.cloned:
		out.says = s.cause.Error()
	case s.wrong: // It would answer the same again. Its volume is removed as a stray.
		return decideElsewhere(s, s.cause)
	case s.isUnknown() && !s.undone:
		out.unanswered = s.unanswered + 1
		if out.unanswered > 1 { // the first may be transient
			out.says = unanswered(s.node, s.cause)
		}
	case fleet.IsNotConnected(s.cause):
		out.do, out.why = wait, nil
	case fleet.NotSent(s.cause) && s.mayHold:
		out.says = refusal + askingAgain
	case reason == names.ReasonRequestDiffers:
		// Made for this claim under other parameters (the class was replaced), without a
		// PersistentVolume.
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

// decideElsewhere leaves a node without the volume. If the node is at fault, the scheduler
// must see first that it is held back. A refused file system counts against the claim alone:
// other nodes may have other disks.
func decideElsewhere(s answer, why error) answerAction {
	out := answerAction{action: action{do: reschedule, node: s.node, why: why, gone: true}, refused: s.cannotFormat()}
	if fault, _ := cluster.NodeFault(s.cause); s.selected && (fault || out.refused) {
		out.do = rescheduleLowered
	}
	return out
}
