//go:build e2e

package tests

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

// noSpace is what kube-scheduler says of a node without enough capacity.
const noSpace = "not have enough free storage"

// TestPodThatAsksForMoreThanAnyNodeHasWaitsUntilSpaceAppears has a Pod go to the one node
// that has enough for it, once with each of the nodes.
func TestPodThatAsksForMoreThanAnyNodeHasWaitsUntilSpaceAppears(t *testing.T) {
	s := begin(t)
	s.capacityIsPublished()
	fillers, free := make([]string, len(s.nodes)), make([]int64, len(s.nodes))
	for i, node := range s.nodes {
		fillers[i], free[i] = fmt.Sprintf("filler-%d", i), s.capacity(node)
		s.start(fillers[i], podOptions{bytes: free[i] - 64*extent, node: node})
	}
	s.running(fillers...)
	for i, node := range s.nodes {
		late := fmt.Sprintf("late-%d", i)
		s.start(late, podOptions{bytes: 128 * extent})
		s.schedulerSays(late, noSpace)
		if p, err := s.CoreV1().Pods(s.namespace).Get(s.ctx, late, metav1.GetOptions{}); err != nil || p.Status.Phase != corev1.PodPending {
			t.Fatalf("the Pod %s: want Pending, got %v, %v", late, p.Status.Phase, err)
		}
		s.remove(fillers[i])
		s.running(late)
		if got := s.nodeOf(late); got != node {
			t.Errorf("the node of %s: want %s, where space appeared, got %s", late, node, got)
		}
		// What is left there is too little for the next one.
		if i < len(s.nodes)-1 {
			s.start(fillers[i]+"-again", podOptions{bytes: free[i] - (128+64)*extent, node: node})
			s.running(fillers[i] + "-again")
		}
	}
}

// schedulerSays waits until the scheduler says so of a Pod. Its Event may keep
// the words of its first attempt, made before there was a claim: Events of one
// reason become a series. The Pod's condition is always that of the last attempt.
func (s *scope) schedulerSays(pod, text string) {
	s.Helper()
	s.must(carve.Until(s.ctx, waitTimeout, fmt.Sprintf("the scheduler says %q of %s", text, pod), func(ctx context.Context) error {
		p, err := s.CoreV1().Pods(s.namespace).Get(ctx, pod, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && strings.Contains(c.Message, text) {
				return nil
			}
		}
		return fmt.Errorf("conditions: %v", p.Status.Conditions)
	}), "see the scheduler's message")
}

// TestBurstThatExactlyFillsTheNodesRunsWithOneFailureOfAPodAtMost starts 20 Pods at once
// that need every extent of two nodes. A reservation made when the scheduler
// selects a node keeps the next Pod from being sent to the same extents.
func TestBurstThatExactlyFillsTheNodesRunsWithOneFailureOfAPodAtMost(t *testing.T) {
	s := begin(t)
	s.capacityIsPublished()
	const pods = 20
	size := s.fillToMultipleOf(pods / 2)
	var names []string
	for i := range pods {
		name := fmt.Sprintf("burst-%02d", i)
		s.start(name, podOptions{bytes: size})
		names = append(names, name)
	}
	s.running(names...)
	for _, node := range s.nodes {
		if got := s.capacity(node); got != 0 {
			t.Errorf("capacity of %s with all Pods running: want 0, got %d", node, got)
		}
	}
	// The scheduler may place a Pod by the capacity of a moment ago, while the reservation of
	// the last one is on its way to it. It tries that Pod again a second later, when it has it.
	s.wantProvisioningFailures(1)
}

// capacityIsPublished waits until what is published of each node is what its volume group has: a
// rise is published later than the volumes of the test before are gone.
func (s *scope) capacityIsPublished() {
	s.Helper()
	for _, node := range s.nodes {
		s.must(carve.Until(s.ctx, waitTimeout, "the capacity of "+node+" is published", func(ctx context.Context) error {
			free, err := strconv.ParseInt(strings.TrimSpace(s.node(node, "vgs", "--noheadings", "--nosuffix", "--units", "b", "-o", "vg_free", "carve")), 10, 64)
			if err != nil {
				return err
			}
			return s.wantCapacity(ctx, node, free)
		}), "wait for the capacity of "+node)
	}
}

// fillToMultipleOf leaves on each node exactly n times the size it returns.
func (s *scope) fillToMultipleOf(n int64) int64 {
	s.Helper()
	smallest := s.capacity(s.nodes[0])
	for _, node := range s.nodes {
		smallest = min(smallest, s.capacity(node))
	}
	size := smallest / n / extent * extent
	if size <= 0 {
		s.Fatalf("the nodes have only %d bytes", smallest)
	}
	var fillers []string
	for i, node := range s.nodes {
		if rest := s.capacity(node) - n*size; rest > 0 {
			name := fmt.Sprintf("filler-%d", i)
			s.start(name, podOptions{bytes: rest, node: node})
			fillers = append(fillers, name)
		}
	}
	s.running(fillers...)
	for _, node := range s.nodes {
		s.must(carve.Until(s.ctx, waitTimeout, "the fillers count", func(ctx context.Context) error {
			return s.wantCapacity(ctx, node, n*size)
		}), "fill "+node)
	}
	return size
}

// wantProvisioningFailures allows that many failed attempts at each claim of the
// namespace. Repeated Events are one object with a count, so occurrences are added up,
// not objects. The PV controller has Events of this reason, too: of writes that another
// one came before, which it repeats.
func (s *scope) wantProvisioningFailures(most int) {
	s.Helper()
	events, err := s.CoreV1().Events(s.namespace).List(s.ctx, metav1.ListOptions{FieldSelector: "reason=ProvisioningFailed"})
	s.must(err, "list events")
	failures := map[string]int{}
	for i := range events.Items {
		event := &events.Items[i]
		if event.Source.Component == "carve-controller" {
			failures[event.InvolvedObject.Name] += occurrences(event)
		}
		s.Logf("ProvisioningFailed of %s, %d times: %s", event.InvolvedObject.Name, occurrences(event), event.Message)
	}
	for claim, got := range failures {
		if got > most {
			s.Errorf("failed attempts at claim %s: want at most %d, got %d", claim, most, got)
		}
	}
}

// occurrences returns how often something happened that an Event reports. Recorders of
// the older kind count in the Event, those of the newer in its series.
func occurrences(event *corev1.Event) int {
	count := max(1, int(event.Count))
	if event.Series != nil {
		count = max(count, int(event.Series.Count))
	}
	return count
}
