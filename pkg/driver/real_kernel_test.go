//go:build kernel

package driver_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

const mib = 1 << 20

type real struct{ kubelet }

func newReal(t testing.TB, disk, medium string) *real {
	t.Helper()
	m := drivertest.NewRealMachine(t, disk, medium)
	return &real{kubelet{Plugin: m.Start(), t: t, machine: m, size: 320 * mib}}
}

func (r *real) isEmpty() bool {
	r.t.Helper()
	answer := must.Get(r.machine.LVMD.ListClasses(r.ctx(), &lvmdv1.ListClassesRequest{}))(r.t)
	return !slices.ContainsFunc(answer.GetClasses(), func(c *lvmdv1.DeviceClass) bool { return c.GetAvailableBytes() != c.GetTotalBytes() })
}

// shutDown makes a file system lose unwritten data and fail from then on: the
// closest to a power cut on a running kernel.
func (r *real) shutDown(path string) {
	r.t.Helper()
	const (
		fsIOCShutdown = 0x8004587d // _IOR('X', 125, __u32)
		noLogFlush    = 2
	)
	f := must.Get(os.Open(path))(r.t)
	defer f.Close()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), fsIOCShutdown, noLogFlush); err != nil {
		r.t.Fatalf("shut down %s: %v", path, err)
	}
}

// swapTable replaces the volume's device-mapper table, with no write in
// between, and returns the old one.
func (r *real) swapTable(v *lvmdv1.Volume, table string) (before string) {
	r.t.Helper()
	name := dmName(v)
	before = drivertest.ByHand(r.t, "dmsetup", "table", name)
	drivertest.ByHand(r.t, "dmsetup", "reload", name, "--table", table)
	drivertest.ByHand(r.t, "dmsetup", "suspend", "--noflush", "--nolockfs", name)
	drivertest.ByHand(r.t, "dmsetup", "resume", name, "--noudevsync")
	return before
}

func (r *real) kill(v *lvmdv1.Volume) (revive func()) {
	r.t.Helper()
	size := must.Get(r.machine.Mounts.NodeSize("/dev/mapper/" + dmName(v)))(r.t)
	before := r.swapTable(v, fmt.Sprintf("0 %d error", size/512))
	return func() { r.swapTable(v, strings.TrimSpace(before)) }
}

func dmName(v *lvmdv1.Volume) string { return v.GetVgName() + "-" + v.GetId() }

func (r *real) write(path, content string) {
	r.t.Helper()
	f, err := os.Create(path)
	if err == nil {
		_, err = f.WriteString(content)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *real) wantFile(path, content string) {
	r.t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != content {
		r.t.Errorf("%s: got %q, %v, want %q", filepath.Base(path), got, err, content)
	}
}

func (r *real) options(path string) (layer, fileSystem []string) {
	r.t.Helper()
	points := must.Get(r.machine.Mounts.Below(r.machine.KubeletDir))(r.t)
	for _, p := range points {
		if p.Path == path {
			return p.Options, p.FSOptions
		}
	}
	r.t.Fatalf("nothing is mounted at %s", path)
	return nil, nil
}

func (r *real) delete(v *lvmdv1.Volume) {
	r.t.Helper()
	if _, err := r.machine.LVMD.DeleteVolume(r.ctx(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()}); err != nil {
		r.t.Error(err)
	}
}

// waitForSpace waits until lvmd has wiped deleted volumes.
func (r *real) waitForSpace() {
	r.t.Helper()
	waittest.Until(r.t, "deleted volumes are gone", func() bool {
		return strings.TrimSpace(drivertest.ByHand(r.t, "lvm", "lvs", "--noheadings", drivertest.Group, "--config", drivertest.HandConfig)) == "" &&
			r.isEmpty()
	})
}

func isErrno(err error, want syscall.Errno) bool { return errors.Is(err, want) }
