//go:build kernel

package driver_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/driver/mount/mounttest"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// TestRealSweep leaves real volumes mounted like a previous run: one dead, one
// in use and one known to the kubelet.
func TestRealSweep(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	leaked, raw, known := r.volume("leaked", "ext4"), r.volume("raw", ""), r.volume("known", "xfs")
	at, rawAt, knownAt := r.places(leaked), r.places(raw), r.places(known)
	mounts := r.machine.Mounts

	must.Succeed(r.t, mounts.Mount(mount.Source{Node: leaked.GetDevicePath()}, at.staged, "ext4", nil))
	must.Succeed(r.t, mounts.Bind(at.staged, at.published, true))
	must.Succeed(r.t, mounts.Bind(raw.GetDevicePath(), rawAt.device, false))
	must.Succeed(r.t, mounts.Mount(mount.Source{Node: known.GetDevicePath()}, knownAt.staged, "xfs", []string{"nouuid"}))
	must.Succeed(r.t, mounts.Bind(knownAt.staged, knownAt.published, false))
	r.note(r.beside(knownAt.published))
	// A mount that is no volume stays, wherever it is.
	foreign := r.machine.MakeDir("pods", "pod-uid", "volumes", "kubernetes.io~csi", "pvc-foreign", "mount")
	must.Succeed(r.t, unix.Mount("tmpfs", foreign, "tmpfs", 0, ""))

	// A container that the kubelet has forgotten still runs.
	container := mounttest.Elsewhere(t, true)
	r.Sweep(context.Background())
	r.wantLayers(5)
	if log := r.machine.Log.String(); !strings.Contains(log, fmt.Sprintf("it is in use: process %d (cat)", container.Pid)) {
		t.Errorf("the container is not named: %s", log)
	}
	must.Succeed(r.t, container.Kill())
	waittest.Until(t, "the container's mounts are gone", func() bool {
		return len(must.Get(mounts.Holders(deviceOf(leaked), at.published))(r.t)) == 0
	})

	open := must.Get(os.Open(at.staged))(r.t)
	r.Sweep(context.Background())
	r.wantGone(at.published)
	r.wantGone(rawAt.device)
	r.wantAt(at.staged, mount.State{Mounted: true, Device: deviceOf(leaked)})
	must.Succeed(r.t, open.Close())

	revive := r.kill(leaked)
	r.Sweep(context.Background())
	r.wantAt(at.staged, mount.State{})
	revive()
	r.wantLayers(3)
	r.wantAt(knownAt.published, mount.State{Mounted: true, Device: deviceOf(known)})

	must.Succeed(r.t, os.Remove(r.beside(knownAt.published)))
	r.Sweep(context.Background())
	r.wantLayers(1)
	must.Succeed(r.t, mounts.Unmount(foreign))
	for _, v := range []*lvmdv1.Volume{leaked, raw, known} {
		r.delete(v)
	}
	r.waitForSpace()
}
