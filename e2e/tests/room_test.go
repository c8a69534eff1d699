//go:build e2e

package tests

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

// noRoom is what kube-scheduler says of a node without enough capacity.
const noRoom = "not have enough free storage"

func TestPodThatAsksForMoreThanAnyNodeHasWaitsUntilRoomAppears(t *testing.T) {
	s := begin(t)
	for i, node := range s.nodes {
		s.start(fmt.Sprintf("filler-%d", i), podOptions{bytes: s.capacity(node) - 64*extent, node: node})
	}
	s.running("filler-0", "filler-1")
	s.start("late", podOptions{bytes: 128 * extent})
	s.schedulerSays("late", noRoom)
	if p, err := s.CoreV1().Pods(s.namespace).Get(s.ctx, "late", metav1.GetOptions{}); err != nil || p.Status.Phase != corev1.PodPending {
		t.Fatalf("the Pod: want Pending, got %v, %v", p.Status.Phase, err)
	}
	s.remove("filler-1")
	s.running("late")
	if got := s.nodeOf("late"); got != s.nodes[1] {
		t.Errorf("the Pod's node: want %s, where room appeared, got %s", s.nodes[1], got)
	}
}

// schedulerSays waits until the scheduler says so of a Pod. Its Event may keep
// the words of its first attempt, made before there was a claim: Events of one
// reason become a series. The Pod's condition is always that of the last attempt.
func (s *scope) schedulerSays(pod, text string) {
	s.Helper()
	s.must(carve.Until(s.ctx, patience, fmt.Sprintf("the scheduler says %q of %s", text, pod), func(ctx context.Context) error {
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

func TestPodGoesToTheOneNodeThatHasRoom(t *testing.T) {
	for full := range 2 {
		t.Run(fmt.Sprintf("node %d is full", full), func(t *testing.T) {
			s := begin(t)
			s.start("filler", podOptions{bytes: s.capacity(s.nodes[full]) - 64*extent, node: s.nodes[full]})
			s.running("filler")
			s.start("guest", podOptions{bytes: 128 * extent})
			s.running("guest")
			if got, want := s.nodeOf("guest"), s.nodes[1-full]; got != want {
				t.Errorf("the Pod's node: want %s, which has room, got %s", want, got)
			}
		})
	}
}

// TestBurstThatExactlyFillsTheNodesRunsWithoutAFailure starts 20 Pods at once
// that need every extent of two nodes. A reservation made when the scheduler
// selects a node keeps the next Pod from being sent to the same extents.
func TestBurstThatExactlyFillsTheNodesRunsWithoutAFailure(t *testing.T) {
	s := begin(t)
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
	s.wantProvisioningFailures(pods / 5)
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
		s.must(carve.Until(s.ctx, patience, "the fillers count", func(ctx context.Context) error {
			return s.wantCapacity(ctx, node, n*size)
		}), "fill "+node)
	}
	return size
}

// wantProvisioningFailures allows that many ProvisioningFailed events in the
// namespace. The scheduler goes on to the next Pod while the reservation of the
// last one is on its way to it, and may place that Pod by the capacity of a
// moment ago: the claim is then released at once and placed again, with one
// event. How many Pods it places in that moment depends on how slow the
// controller's node is; here it is an emulated one.
func (s *scope) wantProvisioningFailures(most int) {
	s.Helper()
	events, err := s.CoreV1().Events(s.namespace).List(s.ctx, metav1.ListOptions{FieldSelector: "reason=ProvisioningFailed"})
	s.must(err, "list events")
	s.Logf("ProvisioningFailed events: %d", len(events.Items))
	if len(events.Items) <= most {
		return
	}
	for _, event := range events.Items {
		s.Logf("event on %s: %s", event.InvolvedObject.Name, event.Message)
	}
	s.Errorf("ProvisioningFailed events: want at most %d, got %d", most, len(events.Items))
}
