package iolimit

import (
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/iolimit/cgroup"
	"github.com/carve-csi/carve/pkg/must"
)

// node has directories in place of a node's cgroups.
type node struct {
	*testing.T
	root    string
	applier *Applier
	at      time.Time
}

func newNode(t *testing.T) *node {
	n := &node{T: t, root: t.TempDir(), at: time.Unix(1e9, 0)}
	n.file("cgroup.controllers", "io")
	n.file("cgroup.subtree_control", "io")
	n.file("kubepods/cgroup.subtree_control", "io")
	n.restart(t.TempDir(), t.TempDir())
	return n
}

// restart starts another run.
func (n *node) restart(requests, reports string) {
	n.applier = NewApplier(Options{Cgroups: cgroup.Root(n.root), RequestDir: requests, ReportDir: reports, Log: slog.New(slog.DiscardHandler)})
	n.applier.now = func() time.Time { return n.at }
}

func (n *node) file(name, text string) {
	n.Helper()
	must.Succeed(n.T, os.MkdirAll(filepath.Dir(filepath.Join(n.root, name)), 0o755))
	must.Succeed(n.T, os.WriteFile(filepath.Join(n.root, name), []byte(text), 0o644))
}

func (n *node) max(pod string) string {
	n.Helper()
	return string(must.Get(os.ReadFile(filepath.Join(n.root, "kubepods", "pod"+pod, "io.max")))(n.T))
}

func (n *node) apply(volumes ...Volume) Report {
	n.Helper()
	must.Succeed(n.T, Request{volumes}.Write(n.applier.o.RequestDir))
	n.applier.Apply()
	return must.Get(ReadReport(n.applier.o.ReportDir))(n.T)
}

func volume(limits Limits, pods ...string) Volume {
	return Volume{ID: "cv1", Device: Device{253, 4}, Pods: pods, Limits: limits}
}

const limited, unlimited = "253:4 rbps=max wbps=1048576 riops=max wiops=max", "253:4 rbps=max wbps=max riops=max wiops=max"

var mebibyte = Limits{WriteBPS: 1 << 20}

func TestLimitsFollowTheRequest(t *testing.T) {
	n := newNode(t)
	n.file("kubepods/poda/io.max", "")
	n.file("kubepods/podb/io.max", "")
	if r := n.apply(volume(mebibyte, "a", "b")); r.Problem != "" || len(r.Failures) > 0 {
		t.Fatalf("report %+v", r)
	}
	if n.max("a") != limited || n.max("b") != limited {
		t.Errorf("limits %q and %q", n.max("a"), n.max("b"))
	}
	t.Log("changed while they are in force")
	n.apply(volume(Limits{WriteBPS: 2 << 20}, "a", "b"))
	if want := strings.Replace(limited, "1048576", "2097152", 1); n.max("a") != want {
		t.Errorf("limits %q, want %q", n.max("a"), want)
	}
	t.Log("lifted for a Pod that goes on, by a run that did not set them")
	n.restart(n.applier.o.RequestDir, n.applier.o.ReportDir)
	n.apply(volume(Limits{}, "a"))
	if n.max("a") != unlimited {
		t.Errorf("limits %q, want none", n.max("a"))
	}
	t.Log("something else took them off")
	n.apply(volume(mebibyte, "a"))
	n.file("kubepods/poda/io.max", "")
	n.apply(volume(mebibyte, "a"))
	if n.max("a") != limited {
		t.Errorf("limits %q, want %q", n.max("a"), limited)
	}
	t.Log("the volume is gone from the Pod, and its number is free for another one")
	n.apply()
	if n.max("a") != unlimited {
		t.Errorf("limits %q, want none", n.max("a"))
	}
}

func TestALimitThatCouldNotBeLiftedIsLiftedLater(t *testing.T) {
	n := newNode(t)
	n.file("kubepods/poda/io.max", "")
	n.apply(volume(mebibyte, "a"))
	const unreadable = "253:4 wbps"
	n.file("kubepods/poda/io.max", unreadable)
	if r := n.apply(volume(Limits{}, "a")); len(r.Failures) > 0 {
		t.Errorf("report %+v for a volume without limits", r)
	}
	n.apply()
	if n.max("a") != unreadable {
		t.Fatalf("limits %q", n.max("a"))
	}
	n.file("kubepods/poda/io.max", limited)
	n.apply()
	if n.max("a") != unlimited {
		t.Errorf("limits %q, want none", n.max("a"))
	}
	t.Log("those of a Pod that has ended are forgotten")
	n.apply(volume(mebibyte, "a"))
	must.Succeed(t, os.RemoveAll(filepath.Join(n.root, "kubepods/poda")))
	n.apply()
	if len(n.applier.limited) != 0 {
		t.Errorf("known are %v", n.applier.limited)
	}
}

func TestWhatCannotBeAppliedIsReported(t *testing.T) {
	t.Run("nothing is requested yet", func(t *testing.T) {
		n := newNode(t)
		n.applier.Apply()
		if r := must.Get(ReadReport(n.applier.o.ReportDir))(t); r.Problem != "" || !r.At.Equal(n.at) {
			t.Errorf("report %+v", r)
		}
	})
	t.Run("a request that is no JSON", func(t *testing.T) {
		n := newNode(t)
		must.Succeed(t, os.WriteFile(filepath.Join(n.applier.o.RequestDir, requestFile), []byte("{"), 0o600))
		n.applier.Apply()
		if r := must.Get(ReadReport(n.applier.o.ReportDir))(t); !strings.Contains(r.Problem, "cannot be read") {
			t.Errorf("report %+v", r)
		}
	})
	t.Run("cgroup v1", func(t *testing.T) {
		n := newNode(t)
		must.Succeed(t, os.Remove(filepath.Join(n.root, "cgroup.controllers")))
		if r := n.apply(volume(mebibyte, "a")); !strings.Contains(r.Problem, cgroup.ErrNotV2.Error()) {
			t.Errorf("report %+v", r)
		}
	})
	t.Run("a Pod without a cgroup, until it has one", func(t *testing.T) {
		n := newNode(t)
		if r := n.apply(volume(mebibyte, "a")); !strings.Contains(r.Failures["cv1"], "Pod a: the Pod has no cgroup") {
			t.Errorf("report %+v", r)
		}
		if r := n.apply(volume(Limits{}, "a")); len(r.Failures) > 0 {
			t.Errorf("report %+v for a volume without limits", r)
		}
		n.file("kubepods/poda/io.max", "")
		if r := n.apply(volume(mebibyte, "a")); len(r.Failures) > 0 || n.max("a") != limited {
			t.Errorf("report %+v, limits %q", r, n.max("a"))
		}
	})
}

// The node plugin concludes from an old report that the Applier does not run.
func TestAReportIsRepeated(t *testing.T) {
	n := newNode(t)
	first := n.apply()
	n.at = n.at.Add(reportInterval - time.Second)
	if r := n.apply(); !r.At.Equal(first.At) {
		t.Error("a report that says the same is written at once")
	}
	n.at = n.at.Add(time.Second)
	r := n.apply()
	if !r.At.Equal(n.at) || !maps.Equal(r.Failures, first.Failures) {
		t.Errorf("report %+v at %v", r, n.at)
	}
}

func TestAFileThatNeitherProgramWritesIsNotRead(t *testing.T) {
	dir := t.TempDir()
	f := must.Get(os.Create(filepath.Join(dir, reportFile)))(t)
	must.Succeed(t, f.Truncate(maxFile+1))
	must.Succeed(t, f.Close())
	if _, err := ReadReport(dir); err == nil || !strings.Contains(err.Error(), ErrTooLarge.Error()) {
		t.Errorf("error %v", err)
	}
}
