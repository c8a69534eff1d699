package kubectl

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/carve-csi/carve/api/conditions"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/kubectl/why"
)

const (
	nextOfGroup = "look on the node for the volume group: vgs --foreign --shared -o+vg_systemid,vg_exported; pvs --all; lsblk -f. Only if none shows it and no disk is away, vgcreate it, " +
		"and the class is offered within seconds; or set optional: true on the class for nodes that are to have none"
	nextOfCondition = "docs/reference/conditions.md"
)

// nodeSpace checks a node's device classes and free space. A node that is full, or lacks a volume
// group that is still to be created, is healthy; one whose group is lost or unusable is not,
// whatever its other classes offer. reports come from the controller.
func (s *snapshot) nodeSpace(node why.Node, reports []classReport) Check {
	name := "node " + node.Name
	ask := "kubectl carve doctor --agents, which asks its agent why"
	var messages, next []string
	fault := s.heldBack[node.Name]
	if fault {
		messages = append(messages, "creating volumes fails there, and its capacity is held back for a while")
		next = append(next, "kubectl describe node "+node.Name)
	}
	reports = slices.DeleteFunc(reports, func(r classReport) bool { return r.isUnusable() && s.hasSpaceIn(node, r.class) })
	for _, r := range reports {
		switch {
		case r.kind != conditions.VolumeGroupMissing:
			fault = true
		case s.lost(node.Name, r.message):
			r.message, fault = r.message+lostGroup, true
		}
		if !slices.Contains(messages, r.message) {
			messages = append(messages, r.message)
		}
	}
	if fault {
		if len(reports) > 0 {
			next = append(next, nextOfCondition, ask)
		}
		return wrong(name, strings.Join(messages, "; "), strings.Join(next, "; "))
	}
	if len(messages) > 0 {
		next = append(next, nextOfGroup)
	}
	if len(node.Largest) > 0 {
		if len(messages) == 0 {
			return passed(name)
		}
		return note(name, strings.Join(messages, "; "), strings.Join(next, "; "))
	}
	var used, reserved int64
	for _, c := range s.offers[node.Name] {
		used, reserved = used+c.UsedBytes, reserved+c.ReservedBytes
	}
	switch {
	case used+reserved > 0:
		problem := "it offers no space: its volumes take " + size(used)
		if reserved > 0 {
			problem += ", and claims whose volumes are being made asked for " + size(reserved)
		}
		messages = append(messages, problem)
		next = append(next, "kubectl carve capacity; kubectl carve volumes --node "+node.Name+"; "+ask)
	case len(messages) == 0:
		messages = append(messages, "it offers no space, and has no volume: it lacks its volume group, or others use all of it")
		next = append(next, ask)
	}
	return note(name, strings.Join(messages, "; "), strings.Join(next, "; "))
}

// Reasons of the controller's Events for device classes. classUnhealthy concerns one type of
// condition, and holds until the next Event about that type, or until the class recovers from it.
const (
	classUnhealthy = "DeviceClassUnhealthy"
	classRecovered = "DeviceClassRecovered"
)

// classReport is the controller's last report of a type of condition of a device class.
type classReport struct{ class, kind, message string }

// isUnusable reports whether no volume can be made in the class.
func (r classReport) isUnusable() bool {
	return strings.Contains(r.message, "no volume can be made in device class ")
}

// classReports returns the conditions of device classes that the controller reported and that are
// not over, by node. The API server keeps Events for an hour.
func classReports(ctx context.Context, client kubernetes.Interface) (map[string][]classReport, error) {
	list, err := client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.kind=Node,source=" + nameController,
	})
	if err != nil {
		return nil, fmt.Errorf("list the Events of the nodes: %w", err)
	}
	// Oldest first. The API server lists Events of the same second in the order of their creation.
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int { return eventTime(a).Compare(eventTime(b).Time) })
	reports := map[string][]classReport{}
	for _, e := range list.Items {
		at := reports[e.InvolvedObject.Name]
		classes, kinds := classesOf(e.Reason, e.Message)
		for _, class := range classes {
			at = slices.DeleteFunc(at, func(r classReport) bool { return r.class == class && slices.Contains(kinds, r.kind) })
			if e.Reason == classUnhealthy {
				at = append(at, classReport{class, kinds[0], e.Message})
			}
		}
		reports[e.InvolvedObject.Name] = at
	}
	return reports, nil
}

// classesOf parses the device classes and the types of condition in an Event. client-go may prefix
// a message.
func classesOf(reason, message string) (classes, kinds []string) {
	_, text, _ := strings.Cut(message, "device class ")
	switch reason {
	case classUnhealthy:
		names, rest, _ := strings.Cut(text, ": ")
		kind, _, _ := strings.Cut(rest, ": ")
		return strings.Split(names, ", "), []string{kind}
	case classRecovered:
		class, over, _ := strings.Cut(text, " recovered from: ")
		return []string{class}, strings.Split(over, ", ")
	}
	return nil, nil
}

// hasSpaceIn reports whether a node offers space in a device class. The class is then usable
// although no Event says so: the controller that reported it as unusable may have ended, or the
// node's configuration changed. A device class that no StorageClass names may be the default.
func (s *snapshot) hasSpaceIn(node why.Node, class string) bool {
	isNamed := func(c storagev1.StorageClass) bool { return c.Parameters[names.ParamDeviceClass] == class }
	if !slices.ContainsFunc(slices.Collect(maps.Values(s.classes)), isNamed) {
		class = ""
	}
	for name, c := range s.classes {
		if isNamed(c) && node.Largest[name] > 0 {
			return true
		}
	}
	return false
}

const lostGroup = ". The node holds PersistentVolumes that lie in it"

// lost reports whether the missing volume group in message has volumes on the node, so that it is
// not one that is still to be created.
func (s *snapshot) lost(node, message string) bool {
	return slices.ContainsFunc(s.groups[node], func(group string) bool { return strings.Contains(message, strconv.Quote(group)) })
}
