//go:build apiserver

package controller

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/carve-csi/carve/pkg/waittest"
)

// removal is what the Cluster Autoscaler's simulation says of a node: see pkg/scheduler/plugin/removable.
func removal(t *testing.T, node string) string {
	t.Helper()
	program := os.Getenv("REMOVABLE")
	if program == "" {
		t.Fatal("REMOVABLE does not name the simulation; run make test-apiserver")
	}
	out, err := exec.CommandContext(t.Context(), program, node).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// says waits until the simulation says so of a node.
func says(t *testing.T, node, words string) {
	t.Helper()
	last := ""
	waittest.Until(t, "of the node is said: "+words, func() bool {
		if now := removal(t, node); now != last {
			t.Log(now)
			last = now
		}
		return strings.Contains(last, words)
	})
}

const (
	mayGo  = "removable"
	mayNot = "didn't match PersistentVolume's node affinity"
)

func TestTheAutoscalerRemovesANodeWhoseVolumesFitElsewhere(t *testing.T) {
	for name, test := range map[string]struct {
		class func(*storagev1.StorageClass)
		// before is the free space of the other node before the node is marked, and after what it is
		// then; the Pod's volume has 100 MiB.
		before, after int64
		// unmarked and marked are what is said of the node at first, and in the end.
		unmarked, marked string
	}{
		"not with a pinned volume":                     {class: nil, before: gib, after: gib, unmarked: mayNot, marked: mayNot},
		"with a movable volume":                        {class: movable, before: gib, after: gib, unmarked: mayGo, marked: mayGo},
		"with a movable volume that would fit nowhere": {class: movable, before: 50 * mib, after: 50 * mib, unmarked: mayGo, marked: mayNot},
		"with one that does not fit any more":          {class: movable, before: gib, after: 50 * mib, unmarked: mayGo, marked: mayNot},
	} {
		t.Run(name, func(t *testing.T) {
			w := movingIn(t, test.class, time.Hour)
			startSet(t, w.client, true)
			claim, pod := w.running(t, "db-0-data", "")
			node := pod.Spec.NodeName
			w.nodes[other(node)].Resize("local", test.before)
			says(t, node, test.unmarked)
			w.mark(t, node)
			w.nodes[other(node)].Resize("local", test.after)
			says(t, node, test.marked)
			w.endSet(t, true, claim, claim)
		})
	}
}
