//go:build e2e

package tests

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

// TestMemcachedIsWarmAfterARestart deletes the Pod of a memcached whose items lie
// in persistent memory; the next one has them.
func TestMemcachedIsWarmAfterARestart(t *testing.T) {
	s := beside(t)
	s.must(s.ApplyFile(s.ctx, s.namespace, "../../deploy/examples/memcached-warm.yaml"), "apply the example")
	s.running("memcached-0")
	const value = "kept-over-a-restart"
	ask := func(command string) string {
		s.Helper()
		return s.exec("memcached-0", "sh", "-c", fmt.Sprintf(`printf '%s\r\nquit\r\n' | nc -w 10 127.0.0.1 11211`, command))
	}
	if reply := ask(fmt.Sprintf(`set key 0 0 %d\r\n%s`, len(value), value)); !strings.Contains(reply, "STORED") {
		t.Fatalf("memcached: want STORED, got %q", reply)
	}
	node := s.nodeOf("memcached-0")
	before, err := s.CoreV1().Pods(s.namespace).Get(s.ctx, "memcached-0", metav1.GetOptions{})
	s.must(err, "get the Pod")
	s.must(s.CoreV1().Pods(s.namespace).Delete(s.ctx, "memcached-0", metav1.DeleteOptions{}), "delete the Pod")
	s.must(carve.Until(s.ctx, patience, "there is another Pod", func(ctx context.Context) error {
		p, err := s.CoreV1().Pods(s.namespace).Get(ctx, "memcached-0", metav1.GetOptions{})
		if err == nil && p.UID == before.UID {
			err = fmt.Errorf("it is the same Pod")
		}
		return err
	}), "wait for another Pod")
	s.running("memcached-0")
	if got := s.nodeOf("memcached-0"); got != node {
		t.Errorf("the Pod's node: want %s, where its items are, got %s", node, got)
	}
	if reply := ask("get key"); !strings.Contains(reply, value) {
		logs, _ := s.Kubectl(s.ctx, nil, "logs", "--namespace", s.namespace, "memcached-0")
		t.Errorf("after the restart: want the value, got %q; memcached says\n%s", reply, logs)
	}
}
