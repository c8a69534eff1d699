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
	"github.com/carve-csi/carve/e2e/vm/residue"
)

const (
	clusterName = "pmem"
	namespace   = "default"
	// patience bounds each wait, on an emulated node of a busy host.
	patience = 5 * time.Minute
)

func TestMemcachedKeepsItsItemsInAFileInPersistentMemory(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Minute)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(cluster.Down(ctx, clusterName, t.Output())) // What an aborted run has left.
	c, err := cluster.Up(ctx, cluster.Options{Name: clusterName, Nodes: 1, PersistentMemory: true, Progress: t.Output()})
	t.Cleanup(func() {
		if err := cluster.Down(context.Background(), clusterName, t.Output()); err != nil {
			t.Error(err)
		}
	})
	must(err)
	client, err := carve.NewClient(c)
	must(err)
	t.Cleanup(func() {
		if t.Failed() {
			client.Diagnose(context.Background(), t.Output())
		}
	})
	must(client.Install(ctx, t.Output()))
	node := c.NodeNames()[0]
	before, err := c.Snapshot(ctx, node)
	must(err)

	must(client.ApplyFile(ctx, namespace, "../../deploy/examples/memcached-pmem.yaml"))
	must(client.PodsRunning(ctx, patience, namespace, "memcached"))
	mounts, err := client.PodExec(ctx, namespace, "memcached", "cat", "/proc/mounts")
	must(err)
	if !slices.ContainsFunc(strings.Split(mounts, "\n"), func(line string) bool {
		return strings.Contains(line, " /cache ext4 ") && strings.Contains(line, "dax=always")
	}) {
		t.Errorf("mounts in the Pod: want /cache with dax=always, got\n%s", mounts)
	}
	const value = "carved-into-persistent-memory"
	reply, err := client.PodExec(ctx, namespace, "memcached", "sh", "-c",
		fmt.Sprintf(`printf 'set key 0 0 %d\r\n%s\r\nget key\r\nquit\r\n' | nc -w 10 127.0.0.1 11211`, len(value), value))
	must(err)
	if !strings.Contains(reply, "STORED") || !strings.Contains(reply, value) {
		t.Fatalf("memcached: want STORED and the value, got %q", reply)
	}
	found, err := client.PodExec(ctx, namespace, "memcached", "grep", "-c", "-a", value, "/cache/items")
	must(err)
	if strings.TrimSpace(found) == "0" {
		t.Error("the value is not in the file on the volume")
	}

	must(client.CoreV1().Pods(namespace).Delete(ctx, "memcached", metav1.DeleteOptions{}))
	must(carve.Until(ctx, patience, "nothing is left on the node", func(ctx context.Context) error {
		after, err := c.Snapshot(ctx, node)
		if err != nil {
			return err
		}
		if left := residue.Compare(before, after); len(left) > 0 {
			return fmt.Errorf("%s has %q", node, left)
		}
		return nil
	}))
}
