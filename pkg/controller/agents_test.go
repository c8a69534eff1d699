package controller

import (
	"net"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/pkg/logging/logtest"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// No address has a link to a replica that just started; all nodes dial it, and so does a Pod
// that is none.
func TestAfterARestartAgentsHavePlacesBesideUnknownPeers(t *testing.T) {
	client := realisticClient(t)
	agent := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "carve-system", Name: "agent"},
		Spec:   v1.PodSpec{ServiceAccountName: "carve-node"},
		Status: v1.PodStatus{Phase: v1.PodRunning, PodIPs: []v1.PodIP{{IP: "127.0.0.1"}}}}
	must.Get(client.CoreV1().Pods("carve-system").Create(t.Context(), agent, metav1.CreateOptions{}))(t)
	r := startReplica(t, client, "replica")
	rejected := func() float64 {
		return testutil.ToFloat64(r.c.core.metrics.uplinkRejections.WithLabelValues("total"))
	}
	for i := 1; i < 128 && rejected() == 0; i++ {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(i))}}
		// Concurrently: in turn, on a busy machine, the first would time out.
		var dials sync.WaitGroup
		for range 8 { // the places of an address
			dials.Go(func() {
				conn, err := dialer.DialContext(t.Context(), "tcp", r.uplink)
				if err != nil {
					t.Error(err)
					return
				}
				t.Cleanup(func() { _ = conn.Close() })
			})
		}
		dials.Wait()
	}
	// The kernel accepts connections before the replica does.
	waittest.Until(t, "unknown peers cannot have all places", func() bool { return rejected() > 0 })
	var log logtest.Recorder
	connectLogging(t, client, "n1", lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib}), log.Logger(), r)
	waittest.Until(t, "the agent is connected", func() bool { return r.c.core.Fleet.Connected() == 1 })
	if failed := log.Find(func(l logtest.Record) bool { return l.Error() != nil }); len(failed) > 0 {
		t.Errorf("the agent was rejected before: %v", failed)
	}
}
