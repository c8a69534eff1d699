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

// One worker has many claims of one namespace queued before one of another. None can be
// created, which writes Events.
func TestNamespacesTakeTurnsAtTheirClaims(t *testing.T) {
	client := clientfake.New()
	all := informers.NewSharedInformerFactory(client, 0)
	c := must.Get(cluster.New(client, fleet.New(fleet.Options{}), all, all, slog.New(slog.DiscardHandler)))(t)
	seen := &subjects{names: make(chan string, 100)}
	c.Recorder = seen
	p := New(c, Options{Parallel: 1, Ledger: scheduler.NewLedger(time.Now), FreeChanged: func(string) {}, AttributesClasses: all.Storage().V1().VolumeAttributesClasses().TypedInformer(), Metrics: NewMetrics(prometheus.NewRegistry())})
	mode := storagev1.VolumeBindingImmediate
	must.Succeed(t, c.Classes.GetIndexer().Add(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "carve"}, Provisioner: names.Driver, VolumeBindingMode: &mode}))
	class := "carve"
	add := func(namespace, name string) {
		claim := &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name)},
			Spec:       v1.PersistentVolumeClaimSpec{StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}},
			Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
		}
		must.Succeed(t, c.Claims.GetIndexer().Add(claim))
		p.claimChanged(claim)
	}
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
