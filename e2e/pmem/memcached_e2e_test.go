//go:build e2e

package pmem

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
	"github.com/carve-csi/carve/e2e/cluster"
)

const (
	clusterName = "pmem"
	namespace   = "default"
	// waitTimeout bounds each wait, on an emulated node of a busy host.
	waitTimeout = 5 * time.Minute
)

// rig is Carve on a cluster whose one node has persistent memory.
type rig struct {
	*testing.T
	*carve.Client
	ctx context.Context
}

func TestMemcachedOnPersistentMemory(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Minute)
	defer cancel()
	r := &rig{T: t, ctx: ctx}
	r.must(cluster.Down(ctx, clusterName, t.Output())) // What an aborted run has left.
	c, err := cluster.Up(ctx, cluster.Options{Name: clusterName, Nodes: 1, PersistentMemory: true, Progress: t.Output()})
	t.Cleanup(func() {
		if err := cluster.Down(context.Background(), clusterName, t.Output()); err != nil {
			t.Error(err)
		}
	})
	r.must(err)
	r.Client, err = carve.NewClient(c)
	r.must(err)
	t.Cleanup(func() {
		if t.Failed() {
			r.Diagnose(context.Background(), t.Output())
		}
	})
	r.must(r.Install(ctx, t.Output()))
	node := c.NodeNames()[0]
	before, err := r.Footprint(ctx, node)
	r.must(err)
	// Both run on the one node at the same time: it is emulated, and waits are long.
	r.must(r.ApplyFile(ctx, namespace, "../../deploy/examples/memcached-pmem.yaml"))
	r.must(r.ApplyFile(ctx, namespace, "../../deploy/examples/memcached-warm.yaml"))
	t.Run("items are in a file on the volume", func(t *testing.T) { r.on(t).itemsAreInAFile() })
	t.Run("items are there after a restart", func(t *testing.T) { r.on(t).itemsSurvive() })

	r.must(r.CoreV1().Pods(namespace).Delete(ctx, "memcached", metav1.DeleteOptions{}))
	r.must(r.AppsV1().StatefulSets(namespace).Delete(ctx, "memcached", metav1.DeleteOptions{}))
	r.must(r.CoreV1().PersistentVolumeClaims(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	r.must(carve.Until(ctx, waitTimeout, "nothing is left on the node", func(ctx context.Context) error {
		after, err := r.Footprint(ctx, node)
		if err == nil && !slices.Equal(before, after) {
			err = fmt.Errorf("%s has %q, had %q", node, after, before)
		}
		return err
	}))
}

// on is the rig for a part of the test.
func (r *rig) on(t *testing.T) *rig { return &rig{T: t, Client: r.Client, ctx: r.ctx} }

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// ask has the memcached in a Pod carry out commands of its text protocol, once it listens.
func (r *rig) ask(pod, commands string) (reply string) {
	r.Helper()
	command := fmt.Sprintf(`printf '%s\r\nquit\r\n' | nc -w 10 127.0.0.1 11211`, commands)
	r.must(carve.Until(r.ctx, waitTimeout, pod+" answers", func(ctx context.Context) (err error) {
		reply, err = r.PodExec(ctx, namespace, pod, "sh", "-c", command)
		return err
	}))
	return reply
}

// store has it keep the value, and return it.
func (r *rig) store(pod, value string) {
	r.Helper()
	reply := r.ask(pod, fmt.Sprintf(`set key 0 0 %d\r\n%s\r\nget key`, len(value), value))
	if !strings.Contains(reply, "STORED") || !strings.Contains(reply, value) {
		r.Fatalf("memcached: want STORED and the value, got %q", reply)
	}
}

func (r *rig) itemsAreInAFile() {
	r.must(r.PodsRunning(r.ctx, waitTimeout, namespace, "memcached"))
	mounts, err := r.PodExec(r.ctx, namespace, "memcached", "cat", "/proc/mounts")
	r.must(err)
	if !slices.ContainsFunc(strings.Split(mounts, "\n"), func(line string) bool {
		return strings.Contains(line, " /cache ext4 ") && strings.Contains(line, "dax=always")
	}) {
		r.Errorf("mounts in the Pod: want /cache with dax=always, got\n%s", mounts)
	}
	const value = "carved-into-persistent-memory"
	r.store("memcached", value)
	found, err := r.PodExec(r.ctx, namespace, "memcached", "grep", "-c", "-a", value, "/cache/items")
	r.must(err)
	if strings.TrimSpace(found) == "0" {
		r.Error("the value is not in the file on the volume")
	}
}

// itemsSurvive deletes the Pod of a memcached whose items lie in persistent memory; the
// next one has them.
func (r *rig) itemsSurvive() {
	const pod, value = "memcached-0", "kept-over-a-restart"
	r.must(r.PodsRunning(r.ctx, waitTimeout, namespace, pod))
	r.store(pod, value)
	before, err := r.CoreV1().Pods(namespace).Get(r.ctx, pod, metav1.GetOptions{})
	r.must(err)
	r.must(r.CoreV1().Pods(namespace).Delete(r.ctx, pod, metav1.DeleteOptions{}))
	r.must(carve.Until(r.ctx, waitTimeout, "there is another Pod", func(ctx context.Context) error {
		p, err := r.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
		if err == nil && p.UID == before.UID {
			err = fmt.Errorf("it is the same Pod")
		}
		return err
	}))
	r.must(r.PodsRunning(r.ctx, waitTimeout, namespace, pod))
	if reply := r.ask(pod, "get key"); !strings.Contains(reply, value) {
		logs, _ := r.Kubectl(r.ctx, nil, "logs", "--namespace", namespace, pod)
		r.Errorf("after the restart: want the value, got %q; memcached says\n%s", reply, logs)
	}
}
