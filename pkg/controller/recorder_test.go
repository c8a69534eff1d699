package controller

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (h *harness) recorded(name, reason string) (found []v1.Event) {
	h.t.Helper()
	for _, e := range must.Get(h.client.CoreV1().Events("").List(context.Background(), metav1.ListOptions{}))(h.t).Items {
		if e.InvolvedObject.Name == name && e.Reason == reason {
			found = append(found, e)
		}
	}
	return found
}

// One claim fails repeatedly on a node. The real recorder sends the Events, and Kubernetes
// merges equal ones.
func TestAttemptsThatFailAlikeAreOneEvent(t *testing.T) {
	const attempts = 4
	h := newHarness(t, func(c *Controller) {
		c.core.available.Least, c.core.available.Most = time.Millisecond, time.Second // increasing
	})
	recorder, stop := cluster.NewRecorder(h.client)
	t.Cleanup(stop)
	h.c.core.Recorder = recorder
	failCreates(h.node("n1", gib), codes.Unavailable, names.ReasonDeviceMissing)
	h.class("carve", nil)
	h.run()
	h.claim("c", "n1", nil)
	for i := range attempts {
		waittest.Until(t, "the claim has no node", h.unselected("c"))
		waittest.Until(t, "n1 is tried again", func() bool { return h.c.core.available.HeldUntil("n1", "local").IsZero() })
		if i < attempts-1 {
			h.selectNode("c", "n1")
		}
	}
	for name, reason := range map[string]string{"c": cluster.ReasonFailed, "n1": cluster.ReasonHeldBack} {
		waittest.Until(t, "all attempts are reported", func() bool {
			sum := int32(0)
			for _, e := range h.recorded(name, reason) {
				sum += e.Count
			}
			return sum == attempts
		})
		if found := h.recorded(name, reason); len(found) != 1 {
			t.Errorf("%d Events %s: %v", len(found), reason, found)
		}
	}
}
