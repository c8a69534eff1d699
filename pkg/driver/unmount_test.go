package driver

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/csierror"
	"github.com/carve-csi/carve/pkg/driver/kubelet"
	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/driver/mount/mountfake"
	"github.com/carve-csi/carve/pkg/must"
)

// hanging is a mount table that thaws nothing until its device answers.
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

		// The second call does not ask the kernel once more.
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
