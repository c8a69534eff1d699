//go:build apiserver

package controller

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/pkg/waittest"
)

// The replica's next retry is an hour away, and it has the shipped rights.
func TestTheControllersRightsAreEnoughToSeeTheLeaseReleased(t *testing.T) {
	client := connectToAPIServer(t)
	install(t, client)
	t.Cleanup(func() {
		_ = client.CoordinationV1().Leases(ours).Delete(context.Background(), leaseName, metav1.DeleteOptions{})
	})
	slow := func(name string) *lease {
		l := contender(asController(t), name)
		l.duration, l.deadline, l.retry = 3*time.Hour, 2*time.Hour, time.Hour
		return l
	}
	first, stopFirst := slow("first").holds(t)
	waittest.Until(t, "the first acts", first.Load)
	standby := slow("second")
	second, _ := standby.holds(t)
	waittest.Until(t, "the second contends", func() bool {
		c := standby.current.Load()
		return c != nil && c.elector.GetLeader() == "first"
	})
	stopFirst()
	waittest.Until(t, "the second acts", second.Load)
}
