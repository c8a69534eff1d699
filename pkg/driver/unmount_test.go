package driver

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/driver/csierror"
	"github.com/carve-csi/carve/pkg/driver/kubelet"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/driver/mount/mountfake"
	"github.com/carve-csi/carve/pkg/luks/luksfake"
	"github.com/carve-csi/carve/pkg/must"
)

// hanging blocks every thaw until its device answers.
type hanging struct {
	mount.Interface
	answers chan struct{}
	asked   atomic.Int64
}

func (h *hanging) Thaw(path string) (bool, error) {
	h.asked.Add(1)
	<-h.answers
	return h.Interface.Thaw(path)
}

func TestThawDoesNotWaitForADeviceThatDoesNotAnswer(t *testing.T) {
	dir := must.Get(filepath.EvalSymlinks(t.TempDir()))(t)
	path := filepath.Join(dir, "globalmount")
	must.Succeed(t, os.Mkdir(path, 0o750))
	synctest.Test(t, func(t *testing.T) {
		table, device := &mountfake.Table{}, mount.Device{Major: 253, Minor: 7}
		table.AddNode("/dev/carve/cv1", device, 1<<30)
		must.Succeed(t, table.Mount(mount.Source{Node: "/dev/carve/cv1"}, path, "ext4", nil))
		table.Freeze(device)
		mounts := &hanging{Interface: table, answers: make(chan struct{})}
		log := slog.New(slog.NewTextHandler(io.Discard, nil))
		u := &unmounter{mounts: mounts, kubelet: kubelet.Dir(dir), devices: &devices{mounts: mounts, kubelet: kubelet.Dir(dir), log: log}, log: log}

		// The second call must not ask the kernel again.
		for range 2 {
			if err := u.thaw("cv1", path); csierror.CodeOf(err) != codes.DeadlineExceeded {
				t.Errorf("got %v", err)
			}
		}
		if asked := mounts.asked.Load(); asked != 1 {
			t.Errorf("the kernel was asked %d times", asked)
		}
		close(mounts.answers)
		synctest.Wait()
		must.Succeed(t, u.thaw("cv1", path))
		must.Succeed(t, table.Unmount(path))
		if inUse := must.Get(table.InUse(device))(t); inUse {
			t.Error("the file system is still frozen")
		}
	})
}

func TestAVolumeAtTwoPathsThatItCannotLeaveHasOneConditionThatStays(t *testing.T) {
	u := &unmounter{kubelet: kubelet.Dir("/k")}
	v := &lvmdv1.Volume{Id: "cv1"}
	u.note("cv1", "/k/b", errors.New("second"))
	u.note("cv1", "/k/a", errors.New("first"))
	for range 32 {
		if is := u.health(v).GetMessage(); is != "first" {
			t.Fatalf("the message is %q: lvmd and the controller learn another one at each look", is)
		}
	}
}

// silent blocks the unmount of one path, or of all, until its device answers.
type silent struct {
	*mountfake.Table
	path    string
	all     atomic.Bool
	answers chan struct{}
}

func (s *silent) Unmount(path string) error {
	if path == s.path || s.all.Load() {
		<-s.answers
	}
	return s.Table.Unmount(path)
}

func TestALeakWhoseDeviceDoesNotAnswerHoldsUpNeitherOthersNorTheEnd(t *testing.T) {
	dir := must.Get(filepath.EvalSymlinks(t.TempDir()))(t)
	globalmount := func(id string) string {
		return filepath.Join(dir, "plugins", "kubernetes.io", "csi", names.Driver, "hash-"+id, "globalmount")
	}
	other := filepath.Join(dir, "plugins", "kubernetes.io", "csi", "other", "hash")
	must.Succeed(t, os.MkdirAll(other, 0o750))
	must.Succeed(t, os.MkdirAll(filepath.Join(dir, "pods", "uid"), 0o750))
	must.Succeed(t, os.WriteFile(filepath.Join(other, "vol_data.json"), []byte(`{"driverName":"other","volumeHandle":"other"}`), 0o600))
	synctest.Test(t, func(t *testing.T) {
		first, second := "cv00000000000000000000000001", "cv00000000000000000000000002"
		mounts := &silent{Table: &mountfake.Table{}, path: globalmount(first), answers: make(chan struct{})}
		for i, id := range []string{first, second} {
			must.Succeed(t, os.MkdirAll(globalmount(id), 0o750))
			mounts.AddNode("/dev/carve/"+id, mount.Device{Major: 253, Minor: uint32(i)}, 1<<30)
			must.Succeed(t, mounts.Mount(mount.Source{Node: "/dev/carve/" + id}, globalmount(id), "ext4", nil))
		}
		node := must.Get(New(t.Context(), Options{NodeName: "n", KubeletDir: dir, Mounts: mounts, LUKS: &luksfake.Table{},
			Metrics: NewMetrics(), Log: slog.New(slog.DiscardHandler)}))(t)
		mounted := func(id string) bool { return must.Get(mounts.At(globalmount(id)))(t).Mounted }
		node.Sweep(t.Context())
		if !mounted(first) || mounted(second) {
			t.Errorf("after a sweep the first is mounted: %t, the second: %t", mounted(first), mounted(second))
		}
		if _, err := node.locks.take(first); csierror.CodeOf(err) != codes.Aborted {
			t.Errorf("while the first is being unmounted, a call may change it: %v", err)
		}

		ended, end := context.WithCancel(t.Context())
		must.Succeed(t, mounts.Mount(mount.Source{Node: "/dev/carve/" + second}, globalmount(second), "ext4", nil))
		mounts.all.Store(true)
		time.AfterFunc(time.Second, end)
		node.SweepRepeatedly(ended) // hangs if unmounting does

		close(mounts.answers)
		synctest.Wait()
		if mounted(first) || mounted(second) {
			t.Errorf("when the device answers, the first is mounted: %t, the second: %t", mounted(first), mounted(second))
		}
	})
}
