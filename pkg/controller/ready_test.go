package controller

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// standby does not lead, and only the test advances its clock.
type standby struct {
	*harness
	now atomic.Int64 // nanoseconds after the uplink was opened
}

func newStandby(t *testing.T, published ...string) *standby {
	t.Helper()
	s := &standby{harness: newHarness(t)}
	opened := time.Now()
	s.c.core.Now = func() time.Time { return opened.Add(time.Duration(s.now.Load())) }
	for _, node := range published {
		must.Get(s.client.CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{}))(t)
		for _, class := range []string{"fast", "slow"} {
			s.publish(node+"-"+class, map[string]string{names.TopologyNode: node})
		}
	}
	return s
}

func (s *standby) publish(name string, topology map[string]string) {
	s.t.Helper()
	must.Get(s.client.StorageV1().CSIStorageCapacities("carve-system").Create(s.t.Context(), &storagev1.CSIStorageCapacity{
		ObjectMeta:       metav1.ObjectMeta{Name: name, Namespace: "carve-system", Labels: map[string]string{names.LabelManagedBy: names.ManagedBy}},
		StorageClassName: "c", NodeTopology: &metav1.LabelSelector{MatchLabels: topology},
	}, metav1.CreateOptions{}))(s.t)
}

func (s *standby) run() {
	s.t.Helper()
	stop := make(chan struct{})
	s.c.all.Start(stop)
	s.c.own.Start(stop)
	s.t.Cleanup(func() {
		close(stop)
		s.c.all.Shutdown()
		s.c.own.Shutdown()
		s.c.core.Fleet.Close()
		s.net.Close()
	})
	waittest.Until(s.t, "the caches are complete", s.c.core.Synced)
	s.c.openUplink()
}

func (s *standby) join(nodes ...string) {
	s.t.Helper()
	for _, node := range nodes {
		s.attach(lvmdfake.New(node, lvmdfake.Class{Name: "local", Default: true, Bytes: gib}), node)
	}
}

func (s *standby) wantReady(when, why string) {
	s.t.Helper()
	got := ""
	if err := s.c.Ready(s.t.Context()); err != nil {
		got = err.Error()
	}
	if got != why {
		s.t.Errorf("%s: the replica is not ready because of %q, want %q", when, got, why)
	}
}

func TestAReplicaIsReadyWhenItsNodesHaveReported(t *testing.T) {
	s := newStandby(t, "n1", "n2", "n3")
	s.publish("template", map[string]string{names.LabelTemplateNode: "true", "kind": "big"}) // no node reports that
	s.run()
	s.wantReady("without nodes", "3 of 3 nodes have not reported yet")
	s.join("n1", "n3")
	s.wantReady("with two nodes", "1 of 3 nodes have not reported yet")
	s.join("n2")
	s.wantReady("with all nodes", "")

	s.publish("n4-fast", map[string]string{names.TopologyNode: "n4"})
	must.Get(s.client.CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n4"}}, metav1.CreateOptions{}))(t)
	waittest.Until(t, "the caches know another node", func() bool {
		expected, unreported := unreportedNodes(s.c.core.Cluster)
		return expected == 4 && unreported == 1
	})
	s.net.Detach("n1")
	waittest.Until(t, "a node is away", func() bool { return s.c.core.Fleet.Connected() == 2 })
	s.wantReady("when a node left and another is to come", "")
}

func TestANodeThatIsDownKeepsAReplicaFromBeingReadyForAWhileOnly(t *testing.T) {
	s := newStandby(t, "n1", "down")
	s.run()
	s.join("n1")
	s.now.Store(int64(fleetTimeout - 1))
	s.wantReady("before the time is over", "1 of 2 nodes have not reported yet")
	s.now.Store(int64(fleetTimeout))
	s.wantReady("when it is over", "")
	s.now.Store(0)
	s.wantReady("ever after", "")
}

func TestAReplicaWaitsWhileNodesStillReport(t *testing.T) {
	type probe struct {
		after      time.Duration
		unreported int
		waits      bool
	}
	const second = time.Second
	for name, probes := range map[string][]probe{
		"all report":                    {{3 * second, 40, true}, {8 * second, 0, false}},
		"none reports":                  {{3 * second, 40, true}, {fleetTimeout - 1, 40, true}, {fleetTimeout, 40, false}},
		"one is down":                   {{3 * second, 40, true}, {5 * second, 1, true}, {fleetTimeout - 1, 1, true}, {fleetTimeout, 1, false}},
		"they report for half a minute": {{3 * second, 5000, true}, {13 * second, 3000, true}, {22 * second, 1000, true}, {31 * second, 1, true}, {36 * second, 0, false}},
		"they do, but for one":          {{3 * second, 5000, true}, {13 * second, 3000, true}, {22 * second, 1, true}, {31 * second, 1, true}, {32 * second, 1, false}},
		"nodes come and go":             {{3 * second, 4, true}, {8 * second, 3, true}, {13 * second, 4, true}, {fleetTimeout, 3, false}},
		"more are added":                {{3 * second, 4, true}, {13 * second, 6, true}, {fleetTimeout, 5, false}},
		"there is no end":               {{3 * second, 5000, true}, {fleetBound - 2*second, 100, true}, {fleetBound - 1, 99, true}, {fleetBound, 98, false}},
	} {
		var r readiness
		opened := time.Now()
		r.open(opened)
		for _, p := range probes {
			if got := r.look(p.unreported, opened.Add(p.after)); got != p.waits {
				t.Errorf("%s: after %v, with %d nodes that have not reported, the replica waits: %t, want %t", name, p.after, p.unreported, got, p.waits)
			}
		}
	}
}

func TestAReplicaDoesNotWaitForNodesThatCannotReport(t *testing.T) {
	s := newStandby(t, "out")
	s.taint("out", v1.TaintNodeOutOfService)
	s.publish("gone-fast", map[string]string{names.TopologyNode: "gone"}) // without a Node object
	s.run()
	s.wantReady("with no node that could report", "")
}

func TestAReplicaOfAnEmptyClusterIsReadyWhenItsUplinkIsOpen(t *testing.T) {
	s := newStandby(t)
	s.wantReady("before it watches", "the view of the cluster is not complete yet")
	s.run()
	s.wantReady("at once", "")
	s.c.listening.Store(false)
	s.wantReady("with its uplink closed", "the uplink is not open yet")
}

func TestAReportThatIsRefusedIsNotWaitedFor(t *testing.T) {
	s := newStandby(t, "n1")
	s.run()
	node := lvmdfake.New("n1", lvmdfake.Class{Name: "local", Default: true, Bytes: gib})
	for i := range fleet.MaxVolumes + 1 {
		node.Put(&lvmdv1.Volume{Id: fmt.Sprintf("v%d", i), DeviceClass: "local"})
	}
	s.net.Attach(node)
	waittest.Until(t, "the report is refused", func() bool { return s.c.core.Fleet.Refused() == 1 })
	s.wantReady("with a report that was refused", "")
}

func TestAReplicaThatIsNotReadySaysHowManyNodesAreMissing(t *testing.T) {
	var nodes []string
	for i := range 40 {
		nodes = append(nodes, fmt.Sprintf("n%d", i))
	}
	s := newStandby(t, nodes...)
	s.run()
	s.join(nodes[:28]...)
	s.wantReady("with 28 of 40 nodes", "12 of 40 nodes have not reported yet")
}
