package provision

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/record"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/clientfake"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/scheduler"
)

// subjects records the names of the objects of Events.
type subjects struct {
	record.FakeRecorder
	names chan string
}

func (s *subjects) Event(object runtime.Object, _, _, _ string) {
	if o, ok := object.(metav1.Object); ok {
		s.names <- o.GetNamespace() + "/" + o.GetName()
	}
}

// alone returns a Provisioner with one worker and the StorageClass carve, and its Events.
func alone(t *testing.T) (*Provisioner, *subjects) {
	t.Helper()
	client := clientfake.New()
	all := informers.NewSharedInformerFactory(client, 0)
	c := must.Get(cluster.New(client, fleet.New(fleet.Options{}), all, all, slog.New(slog.DiscardHandler)))(t)
	seen := &subjects{names: make(chan string, 100)}
	c.Recorder = seen
	p := New(c, Options{Parallel: 1, Ledger: scheduler.NewLedger(time.Now), FreeChanged: func(string) {}, AttributesClasses: all.Storage().V1().VolumeAttributesClasses().TypedInformer(), Metrics: NewMetrics(prometheus.NewRegistry())})
	mode := storagev1.VolumeBindingImmediate
	must.Succeed(t, c.Classes.GetIndexer().Add(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "carve"}, Provisioner: names.Driver, VolumeBindingMode: &mode}))
	return p, seen
}

// rejected adds a claim that cannot be created, so that an Event is written once it is queued.
func rejected(t *testing.T, p *Provisioner, namespace, name, attributes string) *v1.PersistentVolumeClaim {
	t.Helper()
	class := "carve"
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name)},
		Spec: v1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeAttributesClassName: &attributes,
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
	must.Succeed(t, p.Claims.GetIndexer().Add(claim))
	return claim
}

// The one worker finds the claims of two VolumeAttributesClasses, of which one changes.
func TestVolumeAttributesClassWakesItsClaims(t *testing.T) {
	p, seen := alone(t)
	rejected(t, p, "ns", "silver", "silver")
	rejected(t, p, "ns", "gold", "gold")
	p.attributesClassChanged(&storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}})
	p.claimChanged(rejected(t, p, "ns", "last", ""))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { p.loop.Run(ctx); close(done) }()
	got := []string{<-seen.names, <-seen.names}
	cancel()
	<-done
	if want := []string{"ns/gold", "ns/last"}; !slices.Equal(got, want) {
		t.Errorf("queued %v, want %v", got, want)
	}
}

// One worker has many claims of one namespace queued before one of another.
func TestNamespacesTakeTurnsAtTheirClaims(t *testing.T) {
	p, seen := alone(t)
	add := func(namespace, name string) { p.claimChanged(rejected(t, p, namespace, name, "")) }
	for i := range 8 {
		add("crowd", fmt.Sprintf("c%d", i))
	}
	add("other", "o")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { p.loop.Run(ctx); close(done) }()
	first := []string{<-seen.names, <-seen.names}
	cancel()
	<-done
	if !slices.Contains(first, "other/o") {
		t.Errorf("the first claims that were looked at are %v, want one of each namespace", first)
	}
}
