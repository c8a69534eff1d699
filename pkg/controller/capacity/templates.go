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

// The Cluster Autoscaler asks the scheduler's code whether a waiting Pod would fit on a node
// that does not exist yet: a template, copied from a node of its group or made up by the cloud,
// with the label names.LabelTemplateNode. For a Pod with a volume that code wants a
// CSIStorageCapacity object that matches the template, and those of nodes do not: they are
// full, which is why one is needed, or there are none.
//
// So one object per StorageClass and kind of node (value of the label Options.TemplateLabel)
// says what an empty node of the kind has: what the StorageClass' annotation
// names.AnnotationTemplateCapacity says, or the most that an empty node reports. Where no node
// is empty, or none is left, what was published stays: only the object remembers it. No node
// that exists has the label, so that the scheduler itself never looks at these objects.

// templateDelay is how long a change of a node of a kind may wait for more of them.
const templateDelay = IncreaseDelay

// templateOf returns the kind of a node that is empty, for what it has counts for the kind.
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

// templateChanged looks again at the objects of a node's kind. A look is at all nodes, of which hundreds may
// come at once: those that change within templateDelay are looked at once.
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

// configuredChanged looks again at the objects that a class' annotation asks for.
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

// configuredTemplates reads what a class says that empty nodes have, by their kinds:
// "KIND=SIZE,KIND=SIZE".
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

// template decides what should be published of a kind of nodes.
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
		return remove, scheduler.FreeSpace{} // it was changed
	default: // What was published stays, but its owner may be another one now.
		return publish, scheduler.FreeSpace{Available: current.Capacity.Value(), MaximumVolume: current.MaximumVolumeSize.Value()}
	}
	return publish, most.Besides(params.Encryption.HeaderBytes())
}

// keyOf returns what an object is about; its name is the key's, unless it is a stray.
func (p *Publisher) keyOf(c *storagev1.CSIStorageCapacity) Key {
	if c.NodeTopology != nil && c.NodeTopology.MatchLabels[names.LabelTemplateNode] != "" {
		return Key{Template: c.NodeTopology.MatchLabels[p.TemplateLabel], Class: c.StorageClassName}
	}
	return Key{Node: TopologyNode(c), Class: c.StorageClassName}
}

// notInNames are characters of a label's value that an object's name cannot have.
var notInNames = regexp.MustCompile(`[^a-z0-9.-]`)

// templateName is how the name of an object about a kind of nodes begins.
func templateName(kind string) string {
	return "template--" + shortened(notInNames.ReplaceAllString(strings.ToLower(kind), "-"))
}
