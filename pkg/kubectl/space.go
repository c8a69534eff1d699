package kubectl

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/carve-csi/carve/api/conditions"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/kubectl/why"
)

// What to do about conditions of device classes.
const (
	nextOfGroup     = "vgcreate the volume group, and the class is offered within seconds; or set optional: true on the class for nodes that are to have none"
	nextOfCondition = "docs/reference/conditions.md"
)

// withoutSpace says why a node offers no space. A node that is full, or does not have its volume
// group yet, is as it should be; one whose group is lost or cannot be used is not. The messages are
// what the controller reported of its device classes.
func (s *snapshot) withoutSpace(node string, messages []string) (Check, error) {
	name := "node " + node
	if s.heldBack(node) {
		return wrong(name, "creating volumes fails there, and its capacity is held back for a while", "kubectl describe node "+node), nil
	}
	for i, message := range messages {
		if _, text, ok := strings.Cut(message, ": "+conditions.VolumeGroupMissing+": "); !ok || s.lost(node, text) {
			if ok {
				messages[i] += lostGroup
			}
			return wrong(name, strings.Join(messages, "; "), nextOfCondition), nil
		}
	}
	var next []string
	if len(messages) > 0 {
		next = append(next, nextOfGroup)
	}
	capacities, err := s.capacity()
	if err != nil {
		return Check{}, err
	}
	var used, reserved int64
	for _, c := range capacities {
		if c.Node == node {
			used, reserved = used+c.UsedBytes, reserved+c.ReservedBytes
		}
	}
	ask := "kubectl carve doctor --agents, which asks its agent why"
	switch {
	case used+reserved > 0:
		problem := "it offers no space: its volumes take " + size(used)
		if reserved > 0 {
			problem += ", and claims whose volumes are being made asked for " + size(reserved)
		}
		messages = append(messages, problem)
		next = append(next, "kubectl carve capacity; kubectl carve volumes --node "+node+"; "+ask)
	case len(messages) == 0:
		messages = append(messages, "it offers no space, and has no volume: it lacks its volume group, or others use all of it")
		next = append(next, ask)
	}
	return note(name, strings.Join(messages, "; "), strings.Join(next, "; ")), nil
}

// unusable returns what the controller reported of device classes in which no volume can be made, by
// node, unless it reported later that one can be. The API server keeps Events for an hour.
func unusable(ctx context.Context, client kubernetes.Interface) (map[string][]string, error) {
	list, err := client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.kind=Node,source=" + nameController,
	})
	if err != nil {
		return nil, fmt.Errorf("list the Events of the nodes: %w", err)
	}
	newestFirst(list.Items)
	messages, over := map[string][]string{}, map[string]bool{}
	for _, e := range list.Items {
		node := e.InvolvedObject.Name
		switch e.Reason {
		case "DeviceClassUsable":
			over[node] = true
		case "DeviceClassUnusable":
			if !over[node] {
				messages[node] = append(messages[node], e.Message)
			}
		}
	}
	return messages, nil
}

// lostGroup follows the message of a volume group that is missing, on a node with volumes in it.
const lostGroup = ". The node holds PersistentVolumes that lie in it"

// lost reports whether a volume group that the message names, and that a node does not have, has
// volumes there: it is not one that is to be made yet.
func (s *snapshot) lost(node, message string) bool {
	for _, pv := range s.volumes {
		group, _, _ := strings.Cut(pv.Annotations[names.AnnotationVolumeGroup], "/")
		if why.Home(&pv) == node && strings.Contains(message, strconv.Quote(group)) {
			return true
		}
	}
	return false
}

// heldBack reports whether the controller publishes no capacity of the node, because creating
// volumes fails there.
func (s *snapshot) heldBack(node string) bool {
	return slices.ContainsFunc(s.capacities, func(c storagev1.CSIStorageCapacity) bool {
		selector, err := metav1.LabelSelectorAsSelector(c.NodeTopology)
		return err == nil && c.Annotations[names.AnnotationHeldBack] != "" && selector.Matches(labels.Set{names.TopologyNode: node})
	})
}
