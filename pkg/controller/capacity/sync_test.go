package capacity

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/clientfake"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/scheduler"
	"github.com/carve-csi/carve/pkg/waittest"
)

const kindLabel = "example.com/kind"

var (
	nodeKey = Key{Node: "n1", Class: "carve"}
	kindKey = Key{Template: "big", Class: "carve"}
)

// newPublisher returns a Publisher with one object, a class, a node n1 that has not reported, and 5
// GiB on nodes of the kind "big".
func newPublisher(t *testing.T, object *storagev1.CSIStorageCapacity) (*Publisher, *fake.Clientset) {
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
	owner := must.Get(NewOwner(client, "carve-system"))(t)
	return New(c, Options{Namespace: "carve-system", Owner: owner, Ledger: scheduler.NewLedger(time.Now), Available: available,
		TemplateLabel: kindLabel, Metrics: NewMetrics(prometheus.NewRegistry())}), client
}

// syncing syncs a key with one object, and returns the writes.
func syncing(t *testing.T, key Key, object *storagev1.CSIStorageCapacity) (verbs []string) {
	t.Helper()
	p, client := newPublisher(t, object)
	must.Get(p.sync(t.Context(), key))(t)
	for _, action := range client.Actions() {
		verbs = append(verbs, action.GetVerb())
	}
	return verbs
}

// counted counts the lists of all StorageClasses: a check of all objects begins with one.
type counted struct {
	cache.TypedSharedIndexInformer[*storagev1.StorageClass]
	lists atomic.Int64
}

func (c *counted) GetStore() cache.Store {
	c.lists.Add(1)
	return c.TypedSharedIndexInformer.GetStore()
}

func TestManyStraysThatAreGoneAreOneLookAtAllObjects(t *testing.T) {
	stray := Describe(nodeKey, scheduler.FreeSpace{Available: 1, MaximumVolume: 1})
	stray.Name = "another-name"
	p, _ := newPublisher(t, stray)
	classes := &counted{TypedSharedIndexInformer: p.Classes}
	p.Classes = classes
	var working sync.WaitGroup
	defer working.Wait()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	working.Go(func() { p.loop.Run(ctx) })
	const strays = 1000
	began := time.Now()
	for range strays {
		p.objectDeleted(stray)
	}
	waittest.Until(t, "all objects are looked at", func() bool { return classes.lists.Load() > 0 })
	if got, most := classes.lists.Load(), 2+int64(time.Since(began)/IncreaseDelay); got > most {
		t.Errorf("of %d strays: want at most %d looks at all objects, got %d", strays, most, got)
	}
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
			object := Describe(test.key, scheduler.FreeSpace{Available: 10 << 30, MaximumVolume: 10 << 30}) // more than is free: a decrease is written at once
			test.change(object)
			if verbs := syncing(t, test.key, object); !slices.Equal(verbs, []string{"delete"}) {
				t.Errorf("want it deleted, the publisher did %v", verbs)
			}
		})
	}
}

// The object may have replaced a stray one before the stray's key is synced.
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
