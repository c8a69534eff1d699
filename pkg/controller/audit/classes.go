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

var unusableClass = append(conditions.Unusable(conditions.Class), conditions.Unusable(conditions.NewVolume)...)

// itemized are condition types whose messages list incidents: a new message counts as a new
// condition.
var itemized = []string{conditions.DeletionWaits, conditions.VolumeGroupChanged}

type classCondition struct {
	unusable bool     // no volume can be made in the class
	messages []string // one per volume group, sorted
}

// By class and condition type.
type classConditions map[string]map[string]classCondition

func conditionsOfClasses(view *fleet.View) classConditions {
	found := classConditions{}
	for name, class := range view.Classes {
		of := map[string]classCondition{}
		for _, c := range class.GetConditions() {
			if kind := c.GetType(); !slices.Contains(harmless, kind) {
				of[kind] = classCondition{makesUnusable(class, kind), append(of[kind].messages, c.GetMessage())}
			}
		}
		for _, c := range of {
			slices.Sort(c.messages)
		}
		if len(of) > 0 {
			found[name] = of
		}
	}
	return found
}

// makesUnusable is false for a class with free space in another of its groups.
func makesUnusable(class *lvmdv1.DeviceClass, kind string) bool {
	return class.GetAvailableBytes() == 0 && slices.Contains(unusableClass, kind)
}

// mustNotify ignores most changes of messages: their numbers change as volumes come and go.
func (c classCondition) mustNotify(kind string, before classCondition) bool {
	if slices.Contains(itemized, kind) {
		return !slices.Equal(c.messages, before.messages)
	}
	return c.unusable != before.unusable || len(c.messages) > len(before.messages)
}

// reportClasses writes Events about new and ended conditions of device classes. Nodes that are
// not connected keep their conditions.
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

// One Event covers all classes of a volume group.
func (a *Auditor) notifyConditions(node string, before, found classConditions) {
	type event struct {
		unusable      bool
		kind, message string
	}
	classes := map[event][]string{}
	for class, of := range found {
		for kind, c := range of {
			if c.mustNotify(kind, before[class][kind]) {
				e := event{c.unusable, kind, strings.Join(slices.Compact(slices.Clone(c.messages)), "; ")}
				classes[e] = append(classes[e], class)
			}
		}
	}
	var events []string
	for e, of := range classes {
		slices.Sort(of)
		text := "device class " + strings.Join(of, ", ") + ": " + e.kind + ": " + e.message
		if e.unusable {
			text = "no volume can be made in " + text
		}
		events = append(events, text)
	}
	slices.Sort(events)
	for _, text := range events {
		a.NodeEvent(node, v1.EventTypeWarning, cluster.ReasonClassUnhealthy, text)
	}
}

func (a *Auditor) notifyRecovered(node string, view *fleet.View, before, found classConditions) {
	for _, class := range view.ClassNames() {
		if over := onlyIn(before[class], found[class]); len(over) > 0 {
			a.ClassRecovered(node, class, over...)
		}
	}
}
