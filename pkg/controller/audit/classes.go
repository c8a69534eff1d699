package audit

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/carve-csi/carve/api/conditions"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/fleet"
)

// unusableClass are the types of conditions with which nothing can be made in a class.
var unusableClass = append(conditions.Unusable(conditions.Class), conditions.Unusable(conditions.NewVolume)...)

// reportClasses writes Events on nodes whose device classes cannot be used, such as one
// whose volume group is not there yet, and when that is over. Nodes that are not
// connected are as they were.
func (a *Auditor) reportClasses(now *present) {
	reported := map[string]map[string]string{}
	for node, before := range a.classes {
		if now.away[node] {
			reported[node] = before
		}
	}
	for _, node := range slices.Sorted(maps.Keys(now.nodes)) {
		found, before := unusable(now.nodes[node]), a.classes[node]
		for _, class := range slices.Sorted(maps.Keys(found)) {
			if before[class] == "" {
				a.NodeEvent(node, v1.EventTypeWarning, cluster.ReasonClassUnusable, "no volume can be made in device class "+class+": "+found[class])
			}
		}
		for _, class := range slices.Sorted(maps.Keys(before)) {
			if found[class] == "" {
				a.NodeEvent(node, v1.EventTypeNormal, cluster.ReasonClassUsable, "volumes can be made in device class "+class+" again")
			}
		}
		if len(found) > 0 {
			reported[node] = found
		}
	}
	a.classes = reported
}

// reportChangedGroups writes Events on nodes on which a volume group took the place of another
// one. Nodes that are not connected are as they were.
func (a *Auditor) reportChangedGroups(now *present) {
	changed := map[string]map[string]string{}
	for node, before := range a.changed {
		if now.away[node] {
			changed[node] = before
		}
	}
	for _, node := range slices.Sorted(maps.Keys(now.nodes)) {
		view := now.nodes[node]
		for _, name := range slices.Sorted(maps.Keys(view.Classes)) {
			for _, c := range view.Classes[name].GetConditions() {
				if c.GetType() != conditions.VolumeGroupChanged {
					continue
				}
				if changed[node] == nil {
					changed[node] = map[string]string{}
				}
				changed[node][name] = c.GetMessage()
				if a.changed[node][name] != c.GetMessage() {
					a.NodeEvent(node, v1.EventTypeWarning, cluster.ReasonGroupChanged, "device class "+name+": "+c.GetMessage())
				}
			}
		}
	}
	a.changed = changed
}

// unusable returns why the node's classes cannot be used, by class.
func unusable(view *fleet.View) map[string]string {
	found := map[string]string{}
	for name, class := range view.Classes {
		if class.GetAvailableBytes() > 0 {
			continue // in another of its groups
		}
		var reasons []string
		for _, c := range class.GetConditions() {
			if slices.Contains(unusableClass, c.GetType()) {
				reasons = append(reasons, c.GetType()+": "+c.GetMessage())
			}
		}
		if len(reasons) > 0 {
			slices.Sort(reasons)
			found[name] = strings.Join(reasons, "; ")
		}
	}
	return found
}

// reportDeletions writes Events on nodes where deleted volumes are not removed, because of what
// depends on them: such a volume has no claim and no PersistentVolume any more. Nodes that are not
// connected are as they were.
func (a *Auditor) reportDeletions(now *present) {
	reported := map[string]string{}
	for node, before := range a.deletions {
		if now.away[node] {
			reported[node] = before
		}
	}
	for node, view := range now.nodes {
		var waiting []string
		for _, class := range view.Classes {
			for _, c := range class.GetConditions() {
				if c.GetType() == conditions.DeletionWaits {
					waiting = append(waiting, c.GetMessage())
				}
			}
		}
		if len(waiting) == 0 {
			continue
		}
		slices.Sort(waiting)
		// All classes of a volume group say the same.
		reported[node] = strings.Join(slices.Compact(waiting), "; ")
		if reported[node] != a.deletions[node] {
			a.NodeEvent(node, v1.EventTypeWarning, cluster.ReasonDeletionWaits, reported[node])
		}
	}
	a.deletions = reported
}
