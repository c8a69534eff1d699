package provision

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/clientfake"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/scheduler"
	"github.com/carve-csi/carve/pkg/waittest"
)

// A reservation that expired is published only when its node is reported as changed.
func TestReservationsEndInTimeAndTheirNodesAreNotified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientfake.New()
		all := informers.NewSharedInformerFactory(client, 0)
		c := must.Get(cluster.New(client, nil, all, all, slog.New(slog.DiscardHandler)))(t)
		changed := make(chan string, 10)
		p := New(c, Options{Ledger: scheduler.NewLedger(time.Now), FreeChanged: func(node string) { changed <- node }, AttributesClasses: all.Storage().V1().VolumeAttributesClasses().TypedInformer(), Metrics: NewMetrics(prometheus.NewRegistry())})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Run(ctx) }()
		defer func() { stop(); must.Succeed(t, <-ended) }()
		for _, node := range []string{"n1", "n2"} { // one after the other: the loop continues
			p.reservations.reserve(&attempt{uid: "uid", name: "pvc-uid"}, node, spec.Request{Bytes: 1 << 20})
			if got := <-changed; got != node {
				t.Fatalf("a reservation on %s changed %s", node, got)
			}
			time.Sleep(ReservationLife - time.Second)
			synctest.Wait()
			if n := p.Ledger.Reservations(); n != 1 || len(changed) > 0 {
				t.Errorf("before the end: %d reservations, %d nodes changed", n, len(changed))
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := p.Ledger.Reservations(); n != 0 || len(changed) != 1 {
				t.Fatalf("after the end: %d reservations, %d nodes changed", n, len(changed))
			}
			if got := <-changed; got != node {
				t.Errorf("the end of a reservation on %s changed %s", node, got)
			}
		}
	})
}

// While an attempt at such a claim exists, its volume is no orphan.
func TestAClaimThatIsDeletedWhileALeaderBeginsIsAbandoned(t *testing.T) {
	nodes := fleet.New(fleet.Options{})
	defer nodes.Close()
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "uid", Annotations: map[string]string{volume.AnnSelectedNode: "n1"}},
		Spec: v1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("carve"), AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}}},
	}
	client := clientfake.New(claim, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "carve"}, Provisioner: names.Driver,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)})
	all := informers.NewSharedInformerFactory(client, 0)
	c := must.Get(cluster.New(client, nodes, all, all, slog.New(slog.DiscardHandler)))(t)
	p := New(c, Options{Ledger: scheduler.NewLedger(time.Now), FreeChanged: func(string) {}, AttributesClasses: all.Storage().V1().VolumeAttributesClasses().TypedInformer(), Metrics: NewMetrics(prometheus.NewRegistry())})
	ctx, stop := context.WithCancel(t.Context())
	defer all.Shutdown()
	defer stop()
	all.Start(ctx.Done())
	all.WaitForCacheSync(ctx.Done())

	p.DeriveReservations()
	if n := p.Ledger.Reservations(); n != 1 || !p.Busy("uid") {
		t.Fatalf("%d reservations, busy %t", n, p.Busy("uid"))
	}
	must.Succeed(t, client.CoreV1().PersistentVolumeClaims("default").Delete(ctx, "c", metav1.DeleteOptions{}))
	waittest.Until(t, "the cache shows that the claim is gone", func() bool { return p.Claim("uid") == nil })
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	defer func() { stop(); must.Succeed(t, <-ended) }()
	waittest.Until(t, "the claim is abandoned", func() bool { return !p.Busy("uid") && p.Ledger.Reservations() == 0 })
}
