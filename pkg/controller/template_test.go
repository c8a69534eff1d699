package controller

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	corelisters "k8s.io/client-go/listers/core/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/scheduler"
	"github.com/carve-csi/carve/pkg/waittest"
)

const kindLabel = "node.kubernetes.io/instance-type"

func withTemplates(c *Controller) { c.o.TemplateLabel = kindLabel }

func (h *harness) nodeOfKind(name, kind string, bytes int64) *lvmdfake.Server {
	h.t.Helper()
	node := h.node(name, 0)
	h.labelNode(name, kind)
	node.Resize("local", bytes)
	h.attach(node, name)
	return node
}

func (h *harness) labelNode(name, kind string) {
	h.t.Helper()
	must.Get(h.client.CoreV1().Nodes().Patch(h.t.Context(), name, types.StrategicMergePatchType,
		[]byte(`{"metadata":{"labels":{"`+kindLabel+`":"`+kind+`"}}}`), metav1.PatchOptions{}))(h.t)
}

// template returns -1 if nothing is published.
func (h *harness) template(kind string) int64 {
	c, err := h.client.StorageV1().CSIStorageCapacities("carve-system").Get(context.Background(), capacity.Key{Template: kind, Class: "carve"}.ObjectName(), metav1.GetOptions{})
	if err != nil {
		return -1
	}
	want := map[string]string{names.LabelTemplateNode: "true", kindLabel: kind}
	if got := c.NodeTopology.MatchLabels; len(got) != 2 || got[names.LabelTemplateNode] != "true" || got[kindLabel] != kind || c.Capacity.Cmp(*c.MaximumVolumeSize) != 0 {
		h.t.Errorf("object of kind %s: want one for nodes with %v, got %+v", kind, want, c)
	}
	return c.Capacity.Value()
}

func (h *harness) templateIs(kind string, bytes int64) func() bool {
	return func() bool { return h.template(kind) == bytes }
}

func TestWhatAnEmptyNodeHasIsPublishedByKind(t *testing.T) {
	h := newHarness(t, withTemplates)
	h.class("carve", nil)
	small := h.nodeOfKind("n1", "Standard_L8s_v3", gib)
	h.run()
	waittest.Until(t, "one empty node", h.templateIs("Standard_L8s_v3", gib))
	large := h.nodeOfKind("n2", "Standard_L8s_v3", 2*gib)
	waittest.Until(t, "the largest of two", h.templateIs("Standard_L8s_v3", 2*gib))
	h.node("n3", 4*gib) // of no kind
	without := h.node("n4", 0)
	h.labelNode("n4", "without-disks")
	without.SetClass("local", 0, of("VolumeGroupMissing")...)
	h.attach(without, "n4")
	waittest.Until(t, "n4 is published", h.capacityIs("n4", 0))

	h.claim("c", "n1", nil)
	waittest.Until(t, "n1 has a volume", h.bound("c"))
	large.Put(&lvmdv1.Volume{Id: "by-hand", Name: "by-hand", DeviceClass: "local"})
	waittest.Until(t, "and n2", func() bool { v, _ := h.c.core.Fleet.View("n2"); return len(v.Volumes) == 1 })
	h.idle()
	if got := h.template("without-disks"); got != -1 {
		t.Errorf("of a kind whose only node lacks its volume group: want nothing, got %d", got)
	}
	if got := h.template("Standard_L8s_v3"); got != 2*gib {
		t.Errorf("while no node of the kind is empty: want what was published before, %d, got %d", 2*gib, got)
	}
	h.deleteClaim("c")
	h.released("pvc-uid-c")
	waittest.Until(t, "of those that are empty now", h.templateIs("Standard_L8s_v3", gib))
	small.Resize("local", 3*gib)
	waittest.Until(t, "what grew", h.templateIs("Standard_L8s_v3", 3*gib))

	for _, node := range []string{"n1", "n2"} {
		h.net.Detach(node)
		h.deleteNode(node)
	}
	waittest.Until(t, "the nodes' objects are gone", func() bool { return h.capacity("n1") == nil && h.capacity("n2") == nil })
	if got := h.template("Standard_L8s_v3"); got != 3*gib {
		t.Errorf("when the last node of the kind is gone: want what was published before, %d, got %d", 3*gib, got)
	}
	must.Succeed(t, h.client.StorageV1().StorageClasses().Delete(t.Context(), "carve", metav1.DeleteOptions{}))
	waittest.Until(t, "nothing of a class that is gone", h.templateIs("Standard_L8s_v3", -1))
}

// A cloud controller or an administrator may label a node after its first report.
func TestANodeThatIsLabelledLaterIsOfAKind(t *testing.T) {
	h := newHarness(t, withTemplates)
	h.class("carve", nil)
	h.node("n1", gib)
	h.run()
	waittest.Until(t, "n1 is published", h.capacityIs("n1", gib))
	h.idle()
	h.labelNode("n1", "big")
	waittest.Until(t, "its kind is published", h.templateIs("big", gib))
}

// For scaling from zero, the annotation has the capacity and overrides the nodes' reports.
// Invalid values are ignored.
func TestKindsThatWereNeverSeenAreConfigured(t *testing.T) {
	h := newHarness(t, withTemplates)
	h.nodeOfKind("n1", "big", gib)
	annotate := func(value string) func(*storagev1.StorageClass) {
		return func(c *storagev1.StorageClass) {
			c.Annotations = map[string]string{names.AnnotationTemplateCapacity: value}
		}
	}
	class := h.class("carve", annotate("big=5Gi,never-seen=3Gi"))
	h.run()
	waittest.Until(t, "both kinds", func() bool { return h.template("big") == 5*gib && h.template("never-seen") == 3*gib })
	for _, wrong := range []string{"big=much", "big", "big=-1Gi", "big=5Gi never-seen"} {
		class = class.DeepCopy()
		annotate(wrong)(class)
		class = must.Get(h.client.StorageV1().StorageClasses().Update(t.Context(), class, metav1.UpdateOptions{}))(t)
		waittest.Until(t, "what the empty node reports, after "+wrong, h.templateIs("big", gib))
		class = class.DeepCopy()
		annotate("big=5Gi")(class)
		class = must.Get(h.client.StorageV1().StorageClasses().Update(t.Context(), class, metav1.UpdateOptions{}))(t)
		waittest.Until(t, "what is configured", h.templateIs("big", 5*gib))
	}
}

func TestTemplatesGoWithTheirLabel(t *testing.T) {
	for name, label := range map[string]string{"another": "example.com/pool", "none": ""} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, func(c *Controller) { c.o.TemplateLabel = label })
			h.class("carve", nil)
			h.nodeOfKind("n1", "big", gib)
			before := capacity.Describe(capacity.Key{Template: "big", Class: "carve"}, scheduler.FreeSpace{Available: gib, MaximumVolume: gib})
			before.Namespace = "carve-system"
			before.NodeTopology.MatchLabels = map[string]string{names.LabelTemplateNode: "true", kindLabel: "big"}
			must.Get(h.client.StorageV1().CSIStorageCapacities("carve-system").Create(t.Context(), before, metav1.CreateOptions{}))(t)
			h.run()
			waittest.Until(t, "the node's object alone is there", func() bool { return h.capacityIs("n1", gib)() && h.capacities() == 1 })
		})
	}
}

// The labels' values are not valid names of objects.
func TestNamesOfTemplatesAreTaken(t *testing.T) {
	for _, kind := range []string{"m5d.large", "Standard_L8s_v3", "A", strings.Repeat("a", 63), "a.", "x_"} {
		name := capacity.Key{Template: kind, Class: "carve"}.ObjectName()
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			t.Errorf("name %s of kind %s: %v", name, kind, problems)
		}
		if other := (capacity.Key{Node: "template--" + strings.ToLower(kind), Class: "carve"}).ObjectName(); other == name {
			t.Errorf("a node and a kind have the name %s", name)
		}
	}
}

type looks struct {
	corelisters.NodeLister
	first, second atomic.Int64 // of n1 and n2
}

func (l *looks) Get(name string) (*v1.Node, error) {
	switch name {
	case "n1":
		l.first.Add(1)
	case "n2":
		l.second.Add(1)
	}
	return l.NodeLister.Get(name)
}

func TestManyChangesOfNodesAreOneLookAtTheirKind(t *testing.T) {
	var at looks
	h := newHarness(t, withTemplates, func(c *Controller) { at.NodeLister, c.core.NodeLister = c.core.NodeLister, &at })
	h.class("carve", nil)
	h.nodeOfKind("n1", "big", gib)
	h.nodeOfKind("n2", "big", 2*gib)
	h.run()
	waittest.Until(t, "the larger one is published", h.templateIs("big", 2*gib))
	const changes = 200
	began, before := time.Now(), at.second.Load()
	for range changes {
		looked := at.first.Load()
		h.leader().publisher.NodeChanged("n1") // it reads the node itself, for its kind
		waittest.Until(t, "the node's own capacity is looked at", func() bool { return at.first.Load() > looked+1 })
	}
	// Others read the node, too, but rarely.
	most := 10 + int64(time.Since(began)/capacity.IncreaseDelay)
	if got := at.second.Load() - before; got > most {
		t.Errorf("a node changed %d times: want at most %d looks at another one of its kind, got %d", changes, most, got)
	}
}
