//go:build e2e

package tests

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/carve-csi/carve/e2e/carve"
)

// volumeLimit returns how many volumes a node's kubelet was answered that the scheduler may place
// there; zero is no limit. It fails while the driver is not registered.
func (s *scope) volumeLimit(ctx context.Context, node string) (int32, error) {
	registered, err := s.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	for _, driver := range registered.Spec.Drivers {
		switch {
		case driver.Name != carve.Driver:
		case driver.Allocatable == nil || driver.Allocatable.Count == nil:
			return 0, nil
		default:
			return *driver.Allocatable.Count, nil
		}
	}
	return 0, fmt.Errorf("the kubelet of %s does not know the driver", node)
}

// limitsAreAskedFor has the kubelets ask for the limit as often, until the test ends.
func (s *scope) limitsAreAskedFor(seconds int64) {
	s.Helper()
	set := func(ctx context.Context, seconds int64) (before int64, err error) {
		driver, err := s.StorageV1().CSIDrivers().Get(ctx, carve.Driver, metav1.GetOptions{})
		if err != nil {
			return 0, err
		}
		before = *driver.Spec.NodeAllocatableUpdatePeriodSeconds
		patch := fmt.Appendf(nil, `{"spec":{"nodeAllocatableUpdatePeriodSeconds":%d}}`, seconds)
		_, err = s.StorageV1().CSIDrivers().Patch(ctx, carve.Driver, types.MergePatchType, patch, metav1.PatchOptions{})
		return before, err
	}
	before, err := set(s.ctx, seconds)
	s.must(err, "change how often the limit is asked for")
	s.Cleanup(func() {
		_, err := set(context.Background(), before)
		s.must(err, "restore how often the limit is asked for")
	})
}

// wantLimit waits until a node has a limit.
func (s *scope) wantLimit(node string, want int32) {
	s.Helper()
	s.must(carve.Until(s.ctx, waitTimeout, "the node has its limit", func(ctx context.Context) error {
		got, err := s.volumeLimit(ctx, node)
		if err == nil && got != want {
			err = fmt.Errorf("%s takes %d volumes, want %d", node, got, want)
		}
		return err
	}), "wait for the limit")
}

// TestANodeHasItsLimitOnceLvmdAnswers starts the node plugin while lvmd does not answer: the real
// kubelet registers it without a limit, and again with one.
func TestANodeHasItsLimitOnceLvmdAnswers(t *testing.T) {
	s := begin(t)
	node := s.nodes[1]
	limit, err := s.volumeLimit(s.ctx, node)
	s.must(err, "read the limit of "+node)
	if limit == 0 {
		t.Fatalf("%s has no limit from the first", node)
	}
	const lvmd = "pgrep -f '^/usr/local/bin/carve-lvmd'"
	s.Cleanup(func() {
		_, _ = s.NodeExec(context.Background(), node, "sh", "-c", "kill -CONT $("+lvmd+")")
		s.must(s.WaitReady(context.Background(), waitTimeout), "Carve is well again")
	})
	s.node(node, "sh", "-c", "kill -STOP $("+lvmd+") && kill $(pgrep -f '^/usr/local/bin/carve-node')")
	s.wantLimit(node, 0)
	s.node(node, "sh", "-c", "kill -CONT $("+lvmd+")")
	s.wantLimit(node, limit)
}

// TestTheLimitOfANodeFollowsItsFreeSpace fills a node, for volumes of a size: the real kubelet asks for
// the limit as often as the CSIDriver says, and does not register the plugin again for that.
func TestTheLimitOfANodeFollowsItsFreeSpace(t *testing.T) {
	s := begin(t)
	s.capacityIsPublished()
	node := s.nodes[1]
	usual, err := s.volumeLimit(s.ctx, node)
	s.must(err, "read the limit of "+node)
	s.limitsAreAskedFor(10) // The least that is allowed.
	// The other classes have less.
	s.agentArguments("node", fmt.Sprintf("--smallest-volume=%d", s.capacity(node)))
	s.wantLimit(node, usual)
	small := podOptions{bytes: extent, node: node, script: idle}
	s.start("first", small)
	s.running("first")
	s.wantLimit(node, 1)
	s.start("second", small)
	s.schedulerSays("second", "exceed max volume count")
	s.remove("first")
	s.running("second") // In its place.
	s.remove("second")
	s.wantLimit(node, usual)
	log, err := s.Kubectl(s.ctx, nil, "logs", "--namespace", carve.Namespace, s.agentOf(node).Name, "--container", "node")
	s.must(err, "read the log of the node plugin")
	if n := strings.Count(log, "the kubelet registered the plugin"); n != 1 {
		t.Errorf("the kubelet registered the plugin %d times, want once:\n%s", n, log)
	}
}
