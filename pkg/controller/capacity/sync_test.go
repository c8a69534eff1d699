package capacity

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/clientfake"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/scheduler"
)

const kindLabel = "example.com/kind"

var (
	nodeKey = Key{Node: "n1", Class: "carve"}
	kindKey = Key{Template: "big", Class: "carve"}
)

// syncing has a publisher work on a key while there is an object, and returns what it wrote. There
// are a class, a node n1 that has not reported, and 5 GiB on nodes of the kind "big".
func syncing(t *testing.T, key Key, object *storagev1.CSIStorageCapacity) (verbs []string) {
	t.Helper()
	object.Namespace = "carve-system"
	client := clientfake.New(object)
	all, log := informers.NewSharedInformerFactory(client, 0), slog.New(slog.DiscardHandler)
	c := must.Get(cluster.New(client, fleet.New(fleet.Options{}), all, all, log))(t)
	must.Succeed(t, c.Capacities.GetIndexer().Add(object))
	must.Succeed(t, c.Nodes.GetIndexer().Add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}))
	must.Succeed(t, c.Classes.GetIndexer().Add(&storagev1.StorageClass{Provisioner: names.Driver,
		ObjectMeta: metav1.ObjectMeta{Name: "carve", Annotations: map[string]string{names.AnnotationTemplateCapacity: "big=5Gi"}}}))
	available := cluster.NewAvailability(func(string) bool { return false }, scheduler.NewLedger(time.Now), func(string) {}, time.Now, log)
	p := New(c, Options{Namespace: "carve-system", Ledger: scheduler.NewLedger(time.Now), Available: available,
		TemplateLabel: kindLabel, Metrics: NewMetrics(prometheus.NewRegistry())})
	must.Get(p.sync(t.Context(), key))(t)
	for _, action := range client.Actions() {
		verbs = append(verbs, action.GetVerb())
	}
	return verbs
}

func TestAnObjectAboutSomethingElseIsRemovedAndNotWritten(t *testing.T) {
	for name, test := range map[string]struct {
		key    Key
		change func(*storagev1.CSIStorageCapacity)
	}{
		"another node":  {nodeKey, func(c *storagev1.CSIStorageCapacity) { c.NodeTopology.MatchLabels[names.TopologyNode] = "n2" }},
		"another class": {nodeKey, func(c *storagev1.CSIStorageCapacity) { c.StorageClassName = "other" }},
		"kinds of another label": {kindKey, func(c *storagev1.CSIStorageCapacity) {
			c.NodeTopology.MatchLabels = map[string]string{names.LabelTemplateNode: "true", "example.com/earlier": "big"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			object := Describe(test.key, scheduler.FreeSpace{Available: 10 << 30, MaximumVolume: 10 << 30}) // more than there is: a fall is written at once
			test.change(object)
			if verbs := syncing(t, test.key, object); !slices.Equal(verbs, []string{"delete"}) {
				t.Errorf("want it deleted, the publisher did %v", verbs)
			}
		})
	}
}

// An object that took the place of a stray one has its name by the time the stray one is looked at.
func TestAnObjectUnderItsOwnNameIsNotRemovedAsAStray(t *testing.T) {
	object := Describe(nodeKey, scheduler.FreeSpace{Available: 1, MaximumVolume: 1})
	if verbs := syncing(t, Key{stray: object.Name}, object); len(verbs) > 0 {
		t.Errorf("want it left alone, the publisher did %v", verbs)
	}
	object.Name = "another-name"
	if verbs := syncing(t, Key{stray: object.Name}, object); !slices.Equal(verbs, []string{"create", "delete"}) {
		t.Errorf("under another name: want it renamed, the publisher did %v", verbs)
	}
}
