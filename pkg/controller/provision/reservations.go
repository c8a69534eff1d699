package provision

import (
	"context"
	"time"

	utilwait "k8s.io/apimachinery/pkg/util/wait"

	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/scheduler"
)

// ReservationLife is the time from the last attempt to the end of a reservation.
const ReservationLife = 5 * time.Minute

// reservations are safe for concurrent use.
type reservations struct {
	*cluster.Cluster
	ledger  *scheduler.Ledger
	changed func(node string)
}

func (r reservations) reserve(a *attempt, node string, asked spec.Request) {
	r.add(scheduler.Reservation{
		Claim: a.uid, Volume: a.name, Node: node, Class: asked.DeviceClass, Bytes: asked.Footprint(), Deadline: r.Now().Add(ReservationLife),
	})
}

func (r reservations) add(all ...scheduler.Reservation) {
	for _, one := range all {
		for _, node := range r.ledger.Reserve(one) {
			r.changed(node)
		}
	}
}

func (r reservations) release(uid string) {
	if node, ok := r.ledger.Release(uid); ok {
		r.changed(node)
	}
}

func (r reservations) expire(ctx context.Context) {
	utilwait.UntilWithContext(ctx, func(context.Context) {
		for _, node := range r.ledger.Expire() {
			r.changed(node)
		}
	}, 10*time.Second)
}
