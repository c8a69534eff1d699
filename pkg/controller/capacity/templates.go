package capacity

import (
	"fmt"
	"regexp"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/scheduler"
)

// The Cluster Autoscaler uses the scheduler's code to check whether a waiting Pod would fit on a
// node that does not exist yet: a template, copied from a node of its group or invented by the
// cloud provider, with the label names.LabelTemplateNode. For a Pod with a volume, that code needs
// a CSIStorageCapacity object that matches the template. Those of nodes do not: they are full,
// which is why a node is needed, or absent.
//
// So one object per StorageClass and kind of node (value of the label Options.TemplateLabel) states
// the capacity of an empty node of the kind: from the StorageClass's annotation
// names.AnnotationTemplateCapacity, or the most that an empty node reports. While no node is empty,
// the published value stays, since only the object remembers it. No existing node has the label, so
// the scheduler itself never considers these objects.

// templateDelay is how long a change of a node may wait for changes of others of its kind.
const templateDelay = IncreaseDelay

// templateOf returns the kind of a node, or false if the node does not count for it because it is
// not empty.
func (p *Publisher) templateOf(view *fleet.View) (string, bool) {
	if p.TemplateLabel == "" || !view.Connected || !view.Reported() || view.Refused != "" || len(view.Volumes) > 0 {
		return "", false
	}
	node, err := p.NodeLister.Get(view.Node)
	if err != nil || cluster.OutOfService(node) {
		return "", false
	}
	kind := node.Labels[p.TemplateLabel]
	return kind, kind != ""
}

// templateChanged rechecks the objects of a node's kind. A check takes all nodes, and hundreds may
// change at once, so those within templateDelay share one.
func (p *Publisher) templateChanged(node string) {
	view, ok := p.Fleet.View(node)
	if !ok {
		return
	}
	if kind, ok := p.templateOf(view); ok {
		for _, class := range p.OurClasses() {
			p.loop.AddAfter(Key{Template: kind, Class: class.Name}, templateDelay)
		}
	}
}

func (p *Publisher) configuredChanged(name string) {
	class, ours := p.OurClass(name)
	if !ours || p.TemplateLabel == "" {
		return
	}
	configured, err := configuredTemplates(class)
	if err != nil {
		p.Log.Warn("the annotation of a StorageClass cannot be used", "storage_class", name, "annotation", names.AnnotationTemplateCapacity, "error", err)
	}
	for kind := range configured {
		p.loop.Add(Key{Template: kind, Class: name})
	}
}

// configuredTemplates parses the capacities of empty nodes, by kind, in a StorageClass's
// annotation: "KIND=SIZE,KIND=SIZE".
func configuredTemplates(class *storagev1.StorageClass) (map[string]int64, error) {
	pairs, err := labels.ConvertSelectorToLabelsMap(class.Annotations[names.AnnotationTemplateCapacity])
	if err != nil {
		return nil, fmt.Errorf("want KIND=SIZE, separated by commas: %w", err)
	}
	sizes := map[string]int64{}
	for kind, text := range pairs {
		size, err := resource.ParseQuantity(text)
		if err != nil || size.Value() <= 0 {
			return nil, fmt.Errorf("size of %s: %q is not allowed, allowed: a size such as 400Gi", kind, text)
		}
		sizes[kind] = size.Value()
	}
	return sizes, nil
}

func (p *Publisher) template(key Key, class *storagev1.StorageClass, params spec.Class) (desired, scheduler.FreeSpace) {
	if p.TemplateLabel == "" {
		return remove, scheduler.FreeSpace{}
	}
	if configured, err := configuredTemplates(class); err == nil && configured[key.Template] > 0 {
		size := configured[key.Template]
		return publish, scheduler.FreeSpace{Available: size, MaximumVolume: size}
	}
	var most scheduler.FreeSpace
	for _, view := range p.Fleet.Views() {
		if kind, ok := p.templateOf(view); !ok || kind != key.Template {
			continue
		}
		if c, ok := view.Class(params.DeviceClass); ok && c.GetMaximumVolumeSizeBytes() > most.MaximumVolume {
			most = scheduler.FreeSpace{Available: c.GetAvailableBytes(), MaximumVolume: c.GetMaximumVolumeSizeBytes()}
		}
	}
	switch current := p.current(key.ObjectName()); {
	case most.MaximumVolume > 0:
	case current == nil:
		return keep, scheduler.FreeSpace{}
	case current.Capacity == nil || current.MaximumVolumeSize == nil:
		return remove, scheduler.FreeSpace{} // edited by others
	default: // keep the value, but the owner may have changed
		return publish, scheduler.FreeSpace{Available: current.Capacity.Value(), MaximumVolume: current.MaximumVolumeSize.Value()}
	}
	return publish, most.Besides(params.Encryption.HeaderBytes())
}

// keyOf returns the key of an object. A stray does not have the name of its key.
func (p *Publisher) keyOf(c *storagev1.CSIStorageCapacity) Key {
	if c.NodeTopology != nil && c.NodeTopology.MatchLabels[names.LabelTemplateNode] != "" {
		return Key{Template: c.NodeTopology.MatchLabels[p.TemplateLabel], Class: c.StorageClassName}
	}
	return Key{Node: TopologyNode(c), Class: c.StorageClassName}
}

// notInNames matches characters that label values may have and object names may not.
var notInNames = regexp.MustCompile(`[^a-z0-9.-]`)

func templateName(kind string) string {
	return "template--" + shortened(notInNames.ReplaceAllString(strings.ToLower(kind), "-"))
}
