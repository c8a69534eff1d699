package audit

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/fleet"
)

// unusableClass are the types of conditions with which nothing can be made in a class.
var unusableClass = append(conditions.Unusable(conditions.Class), conditions.Unusable(conditions.NewVolume)...)

// classReasons are the reasons of Events for conditions that have one of their own. Their
// messages list what happened, so that a change of it is reported, too.
var classReasons = map[string]string{
	conditions.DeletionWaits:      cluster.ReasonDeletionWaits,
	conditions.VolumeGroupChanged: cluster.ReasonGroupChanged,
}

// classCondition is a type of condition of a class, and the reason of its Events.
type classCondition struct{ class, kind, reason string }

// classConditions are conditions of a node's classes, with their messages: one of each group.
type classConditions map[classCondition][]string

// conditionsOfClasses returns the conditions that a node's classes have.
func conditionsOfClasses(view *fleet.View) classConditions {
	found := classConditions{}
	for name, class := range view.Classes {
		for _, c := range class.GetConditions() {
			if !slices.Contains(harmless, c.GetType()) {
				at := classCondition{name, c.GetType(), classReason(class, c.GetType())}
				found[at] = append(found[at], c.GetMessage())
			}
		}
	}
	for _, messages := range found {
		slices.Sort(messages)
	}
	return found
}

// classReason returns the reason of the Event for a type of condition that a class has. A class
// that has space in another of its groups is usable.
func classReason(class *lvmdv1.DeviceClass, kind string) string {
	switch reason := classReasons[kind]; {
	case reason != "":
		return reason
	case class.GetAvailableBytes() == 0 && slices.Contains(unusableClass, kind):
		return cluster.ReasonClassUnusable
	}
	return cluster.ReasonClassUnhealthy
}

// mustNotify reports whether users are to be notified of these messages, after those before.
// Numbers in messages change as volumes come and go, so that most count once.
func (at classCondition) mustNotify(messages, before []string) bool {
	if classReasons[at.kind] != "" {
		return !slices.Equal(messages, before)
	}
	return len(messages) > len(before)
}

// reportClasses writes Events on nodes whose device classes have conditions, such as a volume
// group that is not there yet, and when those are over. Nodes that are not connected are as they
// were.
func (a *Auditor) reportClasses(now *present) {
	reported := map[string]classConditions{}
	for node, before := range a.classes {
		if now.away[node] {
			reported[node] = before
		}
	}
	for _, node := range slices.Sorted(maps.Keys(now.nodes)) {
		view := now.nodes[node]
		found := conditionsOfClasses(view)
		a.notifyConditions(node, a.classes[node], found)
		a.notifyRecovered(node, view, a.classes[node], found)
		if len(found) > 0 {
			reported[node] = found
		}
	}
	a.classes = reported
}

// notifyConditions writes an Event for each condition that is new: one for all classes of a
// volume group, which have the same.
func (a *Auditor) notifyConditions(node string, before, found classConditions) {
	type event struct{ reason, kind, message string }
	classes := map[event][]string{}
	for at, messages := range found {
		if at.mustNotify(messages, before[at]) {
			e := event{at.reason, at.kind, strings.Join(slices.Compact(messages), "; ")}
			classes[e] = append(classes[e], at.class)
		}
	}
	var events []string
	reasons := map[string]string{}
	for e, of := range classes {
		slices.Sort(of)
		text := "device class " + strings.Join(of, ", ") + ": "
		if e.reason == cluster.ReasonClassUnusable {
			text = "no volume can be made in " + text
		}
		if e.reason != e.kind {
			text += e.kind + ": "
		}
		text += e.message
		events, reasons[text] = append(events, text), e.reason
	}
	slices.Sort(events)
	for _, text := range events {
		a.NodeEvent(node, v1.EventTypeWarning, reasons[text], text)
	}
}

// notifyRecovered writes Events for the classes that are usable again, and for conditions that
// are over, of classes that are still there.
func (a *Auditor) notifyRecovered(node string, view *fleet.View, before, found classConditions) {
	unusable, has := map[string]bool{}, map[[2]string]bool{}
	for at := range found {
		unusable[at.class] = unusable[at.class] || at.reason == cluster.ReasonClassUnusable
		has[[2]string{at.class, at.kind}] = true
	}
	usable, over := map[string]bool{}, map[string][]string{}
	for at := range before {
		switch {
		case view.Classes[at.class] == nil:
		case at.reason == cluster.ReasonClassUnusable:
			usable[at.class] = !unusable[at.class]
		case at.reason == cluster.ReasonClassUnhealthy && !has[[2]string{at.class, at.kind}]:
			over[at.class] = append(over[at.class], at.kind)
		}
	}
	for _, class := range slices.Sorted(maps.Keys(usable)) {
		if usable[class] {
			a.NodeEvent(node, v1.EventTypeNormal, cluster.ReasonClassUsable, "volumes can be made in device class "+class+" again")
		}
	}
	for _, class := range slices.Sorted(maps.Keys(over)) {
		slices.Sort(over[class])
		a.NodeEvent(node, v1.EventTypeNormal, cluster.ReasonClassRecovered, "device class "+class+" has this no more: "+strings.Join(over[class], ", "))
	}
}
