//go:build kernel

package driver_test

import (
	"context"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// silencing silences a device only when its check begins, as the plugin probes
// it before.
type silencing struct {
	driver.FileSystems
	silence func(device string)
}

func (s silencing) Check(ctx context.Context, device string, t filesystem.Type, o filesystem.CheckOptions) error {
	s.silence(device)
	return s.FileSystems.Check(ctx, device, t, o)
}

// One disk of the group has more volumes than may be checked there at once,
// none of which answers.
func TestRealChecksThatHangInTheKernelHoldUpNoneOnAnotherDisk(t *testing.T) {
	const first, second = "/dev/vdb", "/dev/vdc"
	byHand := func(args ...string) {
		t.Helper()
		drivertest.ByHand(t, "lvm", append(args, "--config", drivertest.HandConfig)...)
	}
	t.Cleanup(func() { byHand("pvremove", "--yes", second) }) // after the group is removed
	m := drivertest.NewRealMachine(t, first, "disk")
	var slow []*lvmdv1.Volume
	began, answers := atomic.Int32{}, atomic.Bool{}
	m.FileSystems = silencing{m.FileSystems, func(device string) {
		for _, v := range slow {
			if v.GetDevicePath() == device && !answers.Load() {
				if out, err := exec.Command("dmsetup", "suspend", "--noflush", "--nolockfs", "--noudevsync", dmName(v)).CombinedOutput(); err != nil {
					t.Errorf("suspend %s: %v\n%s", device, err, out)
				}
			}
		}
		began.Add(1)
	}}
	answer := sync.OnceFunc(func() {
		answers.Store(true)
		for _, v := range slow {
			_ = exec.Command("dmsetup", "resume", "--noudevsync", dmName(v)).Run() // harmless for one that is not suspended
		}
	})
	r := &real{kubelet{Plugin: m.Start(), t: t, machine: m, size: 320 * mib}}
	t.Cleanup(answer)
	available := func() int64 {
		return must.Get(m.LVMD.ListClasses(r.ctx(), &lvmdv1.ListClassesRequest{}))(t).GetClasses()[0].GetAvailableBytes()
	}
	dirty := func(name string) *lvmdv1.Volume {
		v := r.volume(name, "ext4")
		drivertest.ByHand(t, "debugfs", "-w", "-R", "set_super_value state 3", v.GetDevicePath())
		return v
	}
	for _, name := range []string{"a", "b", "c"} {
		slow = append(slow, dirty(name))
	}
	one := available()
	byHand("vgextend", "--yes", "--dataalignment", "2m", drivertest.Group, second)
	waittest.Until(t, "lvmd knows of the second disk", func() bool { return available() > one })
	both := available()
	byHand("pvchange", "--allocatable", "n", first)
	waittest.Until(t, "lvmd knows that the first disk gives nothing", func() bool { return available() < both })
	beside := dirty("beside")

	var staging sync.WaitGroup
	for _, v := range slow {
		staging.Go(func() {
			if err := r.stage(v, filesystemAccess(writer)); err != nil {
				t.Errorf("stage %s: %v", v.GetName(), err)
			}
		})
	}
	waittest.Until(t, "checks have begun on the first disk", func() bool { return began.Load() == 2 })
	must.Succeed(t, r.stage(beside, filesystemAccess(writer)))
	if n := began.Load(); n != 3 {
		t.Errorf("%d checks have begun, want two on the disk that does not answer and one on the other", n)
	}
	answer()
	staging.Wait()
	for _, v := range append(slow, beside) {
		must.Succeed(t, r.unstage(v))
		r.delete(v)
	}
}
