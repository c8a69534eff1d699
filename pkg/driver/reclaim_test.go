package driver_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/must"
)

// forget is what becomes of a volume that the kubelet asks nothing for any more:
// what is mounted is taken off at the plugin's start, and when its Pod's
// directory is gone and the grace has passed, it is removed.
func (f *kubelet) forget(i inline) {
	f.t.Helper()
	if err := os.Remove(f.beside(f.inlineTarget(i))); err != nil && !os.IsNotExist(err) {
		f.t.Fatal(err)
	}
	f.restart()
	f.Sweep(f.ctx())
	f.wantLayers(0)
	begin := time.Now()
	before := len(f.listed())
	known := f.ReclaimInline(f.ctx(), driver.Abandoned{}, begin)
	if len(known) != 0 || len(f.listed()) != before {
		f.t.Errorf("with its Pod's directory there: %v", known)
	}
	f.podGoes(i.pod)
	known = f.ReclaimInline(f.ctx(), known, begin)
	known = f.ReclaimInline(f.ctx(), known, begin.Add(driver.ReclaimGrace-time.Second))
	if len(known) != before || len(f.listed()) != before {
		f.t.Errorf("within the grace: %v", known)
	}
	if known = f.ReclaimInline(f.ctx(), known, begin.Add(driver.ReclaimGrace)); len(known) != 0 {
		f.t.Errorf("after the grace: %v", known)
	}
}

func TestReclaimingInlineVolumes(t *testing.T) {
	begin := time.Now()
	later := begin.Add(driver.ReclaimGrace)
	tests := []struct {
		name string
		// meanwhile happens between two looks that are a grace apart.
		meanwhile func(*fixture, inline)
		gone      bool
		log       string
	}{
		{"one without a Pod goes", func(*fixture, inline) {}, true, "removed an inline volume"},
		{"one that is mounted somewhere stays", func(f *fixture, i inline) {
			must.Succeed(f.t, f.mounts.Mount(f.listed()[1].GetDevicePath(), f.machine.MakeDir("elsewhere"), "ext4", nil))
		}, false, "is in use"},
		{"one whose Pod is there again stays", func(f *fixture, i inline) { f.inlineTarget(i) }, false, ""},
		{"nothing goes when the Pods' directory is not there", func(f *fixture, i inline) {
			must.Succeed(f.t, os.Rename(filepath.Join(f.machine.KubeletDir, "pods"), filepath.Join(f.machine.KubeletDir, "away")))
		}, false, "no such file or directory"},
		{"nothing goes when there is no Pod at all", func(f *fixture, i inline) { f.podGoes("plugin") }, false, "is empty"},
		{"nothing goes when lvmd does not answer", func(f *fixture, i inline) { f.lvmd.SetDown(true) }, false, "a disk is gone"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newInline(t)
			i := f.inline("pod", "")
			f.machine.MakeDir("pods", "plugin")
			claimed := f.volume("pvc-1", "ext4")
			must.Succeed(f.t, f.publishInline(i))
			must.Succeed(f.t, f.mounts.Off(f.inlineTarget(i)))
			f.podGoes("pod")
			known := f.ReclaimInline(f.ctx(), driver.Abandoned{}, begin)
			if len(known) != 1 {
				t.Fatalf("known %v", known)
			}
			tt.meanwhile(f, i)
			f.ReclaimInline(f.ctx(), known, later)
			f.lvmd.SetDown(false)
			left := map[string]bool{}
			for _, v := range f.listed() {
				left[v.GetName()] = true
			}
			if left[i.id] == tt.gone || !left[claimed.GetName()] {
				t.Errorf("left: %v", left)
			}
			if log := f.machine.Log.String(); !strings.Contains(log, tt.log) {
				t.Errorf("no %q in the log: %s", tt.log, log)
			}
		})
	}
}

// TestAnInlineVolumeWithoutAPodForAMomentIsNotReclaimed: the grace begins anew.
func TestAnInlineVolumeWithoutAPodForAMomentIsNotReclaimed(t *testing.T) {
	f := newInline(t)
	i := f.inline("pod", "")
	f.machine.MakeDir("pods", "plugin")
	must.Succeed(f.t, f.publishInline(i))
	must.Succeed(f.t, f.mounts.Off(f.inlineTarget(i)))
	f.podGoes("pod")
	now := time.Now()
	known := f.ReclaimInline(f.ctx(), driver.Abandoned{}, now)
	f.inlineTarget(i)
	known = f.ReclaimInline(f.ctx(), known, now.Add(driver.ReclaimGrace/2))
	f.podGoes("pod")
	known = f.ReclaimInline(f.ctx(), known, now.Add(driver.ReclaimGrace))
	f.wantInline(i)
	f.ReclaimInline(f.ctx(), known, now.Add(2*driver.ReclaimGrace))
	f.wantInline()
}
