package provision

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/informers"

	"github.com/carve-csi/carve/pkg/controller/clientfake"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/scheduler"
)

// What an abandoned claim reserved is published again only when its node is called changed.
func TestReservationsEndInTimeAndTheirNodesAreNotified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientfake.New()
		all := informers.NewSharedInformerFactory(client, 0)
		c := must.Get(cluster.New(client, nil, all, all, slog.New(slog.DiscardHandler)))(t)
		changed := make(chan string, 10)
		p := New(c, Options{Ledger: scheduler.NewLedger(time.Now), FreeChanged: func(node string) { changed <- node }, Metrics: NewMetrics(prometheus.NewRegistry())})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Run(ctx) }()
		defer func() { stop(); must.Succeed(t, <-ended) }()
		for _, node := range []string{"n1", "n2"} { // one after the other: it goes on looking
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
