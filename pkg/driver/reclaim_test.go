package driver_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/inline"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/must"
)

// forget lets the kubelet forget a volume: the plugin unmounts it at its start
// and removes it when its Pod's directory is gone and the grace has passed.
func (f *kubelet) forget(i inlineVolume) {
	f.t.Helper()
	if err := os.Remove(f.beside(f.inlineTarget(i))); err != nil && !os.IsNotExist(err) {
		f.t.Fatal(err)
	}
	f.restart()
	f.Sweep(f.ctx())
	f.wantLayers(0)
	begin := time.Now()
	before := len(f.listed())
	known := f.ReclaimInline(f.ctx(), inline.Abandoned{}, begin)
	if len(known) != 0 || len(f.listed()) != before {
		f.t.Errorf("with its Pod's directory there: %v", known)
	}
	f.podGoes(i.pod)
	known = f.ReclaimInline(f.ctx(), known, begin)
	known = f.ReclaimInline(f.ctx(), known, begin.Add(inline.Grace-time.Second))
	if len(known) != before || len(f.listed()) != before {
		f.t.Errorf("within the grace: %v", known)
	}
	if known = f.ReclaimInline(f.ctx(), known, begin.Add(inline.Grace)); len(known) != 0 {
		f.t.Errorf("after the grace: %v", known)
	}
}

func TestReclaimingInlineVolumes(t *testing.T) {
	begin := time.Now()
	later := begin.Add(inline.Grace)
	tests := []struct {
		name string
		// meanwhile runs between two checks a grace apart.
		meanwhile func(*fixture, inlineVolume)
		gone      bool
		log       string
	}{
		{"one without a Pod goes", func(*fixture, inlineVolume) {}, true, "removed an inline volume"},
		{"one that is mounted somewhere stays", func(f *fixture, i inlineVolume) {
			must.Succeed(f.t, f.mounts.Mount(mount.Source{Node: f.inlineDevice(i)}, f.machine.MakeDir("elsewhere"), "ext4", nil))
		}, false, "is open or mounted"},
		{"one whose Pod is there again stays", func(f *fixture, i inlineVolume) { f.inlineTarget(i) }, false, ""},
		{"nothing goes when the Pods' directory is not there", func(f *fixture, i inlineVolume) {
			must.Succeed(f.t, os.Rename(filepath.Join(f.machine.KubeletDir, "pods"), filepath.Join(f.machine.KubeletDir, "away")))
		}, false, "no such file or directory"},
		{"nothing goes when there is no Pod at all", func(f *fixture, i inlineVolume) { f.podGoes("plugin") }, false, "is empty"},
		{"nothing goes when lvmd does not answer", func(f *fixture, i inlineVolume) { f.lvmd.SetDown(true) }, false, "it is not known which inline volumes have lost their Pods"},
		{"nothing goes when lvmd cannot delete it", func(f *fixture, i inlineVolume) {
			hooks := f.lvmd.Hooks()
			hooks.BeforeDelete = func(context.Context, *lvmdv1.DeleteVolumeRequest) error {
				return apierror.DeviceMissing("a disk is gone")
			}
			f.lvmd.SetHooks(hooks)
		}, false, "a disk is gone"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newInline(t)
			i := f.inline("pod", "")
			f.machine.MakeDir("pods", "plugin")
			claimed := f.volume("pvc-1", "ext4")
			must.Succeed(f.t, f.publishInline(i))
			must.Succeed(f.t, f.mounts.Unmount(f.inlineTarget(i)))
			f.podGoes("pod")
			known := f.ReclaimInline(f.ctx(), inline.Abandoned{}, begin)
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

// The grace begins again.
func TestAnInlineVolumeWithoutAPodForAMomentIsNotReclaimed(t *testing.T) {
	f := newInline(t)
	i := f.inline("pod", "")
	f.machine.MakeDir("pods", "plugin")
	must.Succeed(f.t, f.publishInline(i))
	must.Succeed(f.t, f.mounts.Unmount(f.inlineTarget(i)))
	f.podGoes("pod")
	now := time.Now()
	known := f.ReclaimInline(f.ctx(), inline.Abandoned{}, now)
	f.inlineTarget(i)
	known = f.ReclaimInline(f.ctx(), known, now.Add(inline.Grace/2))
	f.podGoes("pod")
	known = f.ReclaimInline(f.ctx(), known, now.Add(inline.Grace))
	f.wantInline(i)
	f.ReclaimInline(f.ctx(), known, now.Add(2*inline.Grace))
	f.wantInline()
}
