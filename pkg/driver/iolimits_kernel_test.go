//go:build kernel

package driver_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/iolimit"
	"github.com/carve-csi/carve/pkg/iolimit/cgroup"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// TestRealLimitsReachTheCgroupsOfPods follows limits from lvmd's request
// through LVM's tag, the mount table and the container's program to the kernel.
// It covers plain and encrypted volumes, a change while the Pod runs, a restart
// of the program, and removal of the limits.
func TestRealLimitsReachTheCgroupsOfPods(t *testing.T) {
	m := drivertest.NewRealMachine(t, "/dev/vdb", "disk")
	m.IOLimits = driver.IOLimitDirs{Requests: t.TempDir(), Reports: t.TempDir()}
	r := &real{kubelet{Plugin: m.Start(), t: t, machine: m, size: 320 * mib}}
	background(t, r.RequestIOLimits)
	applier := func() (stop func()) {
		return background(t, iolimit.NewApplier(iolimit.Options{
			Cgroups: "/sys/fs/cgroup", RequestDir: m.IOLimits.Requests, ReportDir: m.IOLimits.Reports, Log: slog.New(slog.DiscardHandler),
		}).Run)
	}
	stop := applier()

	const pod = "4d1f2b7c-0000-4000-8000-000000000001"
	dir := "/sys/fs/cgroup"
	for _, name := range []string{"kubepods", "burstable", "pod" + pod} {
		dir = filepath.Join(dir, name)
		if err := os.Mkdir(dir, 0o755); err == nil {
			made := dir
			t.Cleanup(func() { _ = os.Remove(made) })
		}
	}
	plain, locked := r.volume("plain", "ext4"), r.locked("locked", "ext4")
	modify := func(v *lvmdv1.Volume, writeBPS uint64) {
		t.Helper()
		must.Get(m.LVMD.ModifyVolume(r.ctx(), &lvmdv1.ModifyVolumeRequest{Id: v.GetId(), IoLimits: &lvmdv1.IOLimits{WriteBps: writeBPS}}))(t)
	}
	for _, v := range []*lvmdv1.Volume{plain, locked} {
		must.Succeed(t, r.stage(v, filesystemAccess(writer)))
		must.Succeed(t, r.publish(v, pod, filesystemAccess(writer), false))
		modify(v, mib)
	}
	want := func(what string, device mount.Device, line string) {
		t.Helper()
		var max []byte
		waittest.Until(t, what, func() bool {
			max, _ = os.ReadFile(filepath.Join(dir, "io.max"))
			if line == "" {
				return !strings.Contains(string(max), fmt.Sprintf("%d:%d ", device.Major, device.Minor))
			}
			return strings.Contains(string(max), fmt.Sprintf("%d:%d %s\n", device.Major, device.Minor, line))
		}, func() any { return string(max) })
	}
	of := func(bytes int) string { return fmt.Sprintf("rbps=max wbps=%d riops=max wiops=max", bytes) }
	want("a plain volume is limited", deviceOf(plain), of(mib))
	want("an encrypted one is, at its mapping", r.mapping(locked), of(mib))
	want("and not below", deviceOf(locked), "")
	if found := r.CheckHealth(context.Background(), driver.Conditions{}); len(found) > 0 {
		t.Errorf("conditions %v", found)
	}

	modify(plain, 2*mib)
	want("a limit that is changed is in force", deviceOf(plain), of(2*mib))
	stop()
	modify(plain, 4*mib)
	want("limits stay while the program does not run", deviceOf(plain), of(2*mib))
	applier()
	want("it catches up", deviceOf(plain), of(4*mib))
	modify(plain, 0)
	want("a limit that is lifted is gone", deviceOf(plain), "")
	want("the others are as they were", r.mapping(locked), of(mib))

	if _, err := cgroup.Root("/sys/fs/cgroup").Set(dir, "1:1", cgroup.Max{}); err != nil {
		t.Errorf("nothing to be lifted: %v", err)
	}
	for _, v := range []*lvmdv1.Volume{plain, locked} {
		must.Succeed(t, r.unpublish(v, pod))
		must.Succeed(t, r.unstage(v))
		r.delete(v)
	}
}

func background(t *testing.T, run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}
