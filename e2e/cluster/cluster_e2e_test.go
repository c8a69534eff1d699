//go:build e2e

package cluster

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/carve-csi/carve/e2e/netns"
	"github.com/carve-csi/carve/e2e/vm/agent"
	"github.com/carve-csi/carve/e2e/vm/leftovers"
)

// testName is the name of the cluster that this test makes and removes.
const testName = "harness-test"

// TestARealCluster goes through a cluster's life, from an Up that is killed to its end.
func TestARealCluster(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	if err := Down(ctx, testName, t.Output()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Down(context.Background(), testName, nil); err != nil {
			t.Error(err)
		}
	})
	killedUp(ctx, t)
	c, err := Up(ctx, Options{Name: testName, Nodes: 1, Progress: t.Output()})
	if err != nil {
		t.Fatal("Up after one that was killed:", err)
	}
	node := c.NodeNames()[0]

	t.Run("a second Up changes nothing", func(t *testing.T) {
		before := partsOf(t, c)
		if _, err := Up(ctx, Options{Name: testName}); err != nil {
			t.Fatal(err)
		}
		if after := partsOf(t, c); !slices.Equal(before, after) {
			t.Errorf("processes: %v before, %v after", before, after)
		}
	})
	t.Run("all is well and within reach", func(t *testing.T) { wellAndWithinReach(ctx, t, c) })
	t.Run("a power cut loses nothing that was flushed", func(t *testing.T) { powerCut(ctx, t, c, node) })
	t.Run("Down leaves nothing behind", func(t *testing.T) {
		processes, err := c.namespace.Processes()
		if err != nil || len(processes) == 0 {
			t.Fatalf("processes before: %v, %v", processes, err)
		}
		for range 2 {
			if err := c.Down(ctx); err != nil {
				t.Fatal(err)
			}
		}
		for _, pid := range processes {
			if line := commandLine(pid); line != "" {
				t.Errorf("process %d is still there: %s", pid, line)
			}
		}
		if _, err := netns.Open(c.namespaceName()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the namespace: %v, want fs.ErrNotExist", err)
		}
		if _, err := os.Stat(c.dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the folder: %v, want fs.ErrNotExist", err)
		}
		if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(mounts), testName) {
			t.Errorf("a mount is left, or cannot be looked for: %v", err)
		}
	})
}

// partsOf returns the processes that a cluster consists of: its control plane and its
// machines. The children of these are left out, for a kernel in user mode has a child
// for each process that runs in its machine, and those come and go by themselves.
func partsOf(t *testing.T, c *Cluster) []int {
	t.Helper()
	all, err := c.namespace.Processes()
	if err != nil {
		t.Fatal(err)
	}
	var parts []int
	for _, pid := range all {
		process, err := procfs.NewProc(pid)
		if err != nil {
			continue // It has ended.
		}
		status, err := process.Stat()
		if err != nil {
			continue // It has ended.
		}
		if !slices.Contains(all, status.PPID) {
			parts = append(parts, pid)
		}
	}
	if len(parts) == 0 {
		t.Fatalf("none of the processes %v is a part of the cluster", all)
	}
	return parts
}

// commandLine returns what a process was called with; nothing once it has ended.
func commandLine(pid int) string {
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return ""
	}
	return strings.ReplaceAll(string(content), "\x00", " ")
}

// killedUp runs Up in a process of its own and kills that as soon as there is a
// machine.
func killedUp(ctx context.Context, t *testing.T) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "cluster")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "../cmd/cluster")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, output)
	}
	command := exec.CommandContext(ctx, binary, "up", "--name", testName, "--nodes", "1")
	command.Stdout, command.Stderr = t.Output(), t.Output()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	c, err := named(testName, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.choose(Options{Nodes: 1}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	for machine := false; !machine; {
		select {
		case err := <-ended:
			t.Fatalf("Up ended before it had a machine: %v", err)
		case <-time.After(pollInterval):
		}
		if c.namespace, err = netns.Open(c.namespaceName()); err == nil {
			if machine, err = c.running(c.nodes[0]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Fatal("Up was done before it could be killed")
	}
}

func wellAndWithinReach(ctx context.Context, t *testing.T, c *Cluster) {
	for _, line := range c.Status(ctx) {
		if !line.Well {
			t.Errorf("%s: %s", line.Name, line.Message)
		}
	}
	config, err := c.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		t.Errorf("nodes: %v, %v", nodes, err)
	}
	var stdout strings.Builder
	if err := c.Kubectl(ctx, nil, &stdout, t.Output(), "get", "nodes", "--output", "name"); err != nil || stdout.String() != "node/node-1\n" {
		t.Errorf("kubectl printed %q, %v", stdout.String(), err)
	}
	attached, err := Attach(testName)
	if err != nil {
		t.Fatal(err)
	}
	result, err := attached.Exec(ctx, "node-1", "vgs", "--noheadings", "-o", "vg_name")
	if err != nil || result.ExitCode != 0 || strings.TrimSpace(result.Stdout) != "carve" {
		t.Errorf("vgs on the node: %+v, %v", result, err)
	}
	if _, err := attached.Exec(ctx, "node-9", "true"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Exec on a node that is not there: %v, want fs.ErrNotExist", err)
	}
}

func powerCut(ctx context.Context, t *testing.T, c *Cluster, node string) {
	must := func(argv ...string) string {
		t.Helper()
		result, err := c.Exec(ctx, node, argv...)
		if err != nil || result.ExitCode != 0 {
			t.Fatalf("%v: %+v, %v", argv, result, err)
		}
		return strings.TrimSpace(result.Stdout)
	}
	before, err := c.Snapshot(ctx, node)
	if err != nil {
		t.Fatal(err)
	}
	must("sync") // The kubelet does not flush its certificate, and does not start again with an empty one.
	must("lvcreate", "-qq", "-y", "-W", "n", "-L", "64m", "-n", "kept", "carve")
	must("dd", "if=/proc/sys/kernel/hostname", "of=/dev/carve/kept", "conv=fsync", "status=none")
	if err := c.Kill(ctx, node); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Exec(ctx, node, "true"); !errors.Is(err, agent.ErrGone) || !strings.Contains(err.Error(), "console.log ends:") {
		t.Errorf("Exec on a node that is off: %v, want agent.ErrGone and what the node's console showed last", err)
	}
	if err := c.Start(ctx, node); err != nil {
		t.Fatal(err)
	}
	must("lvchange", "-ay", "carve/kept")
	if got := must("head", "-c", "6", "/dev/carve/kept"); got != node {
		t.Errorf("the volume holds %q after the power cut, want %q", got, node)
	}
	must("lvremove", "-qq", "-y", "carve/kept")
	after, err := c.Snapshot(ctx, node)
	if err != nil {
		t.Fatal(err)
	}
	// Pods were started again.
	before.Mounts, after.Mounts = nil, nil
	before.Processes, after.Processes = nil, nil
	if left := leftovers.Compare(before, after); len(left) > 0 {
		t.Errorf("the node is not as before: %q", left)
	}
}
