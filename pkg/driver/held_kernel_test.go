//go:build kernel

package driver_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/mount/mounttest"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// TestRealHolder keeps a volume mounted in another mount namespace when it is
// unstaged, as an agent that mounts the kubelet's directory from the host does.
func TestRealHolder(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	v := r.volume("a", "ext4")
	must.Succeed(t, r.stage(v, access(v)))
	r.write(filepath.Join(r.staging(v), "file"), "precious")
	agent := mounttest.Elsewhere(t, true)
	named := fmt.Sprintf("process %d (cat) has it mounted at %s", agent.Pid, r.staging(v))

	must.Succeed(t, r.unstage(v))
	if log := r.machine.Log.String(); !strings.Contains(log, named) {
		t.Errorf("unstaged, the holder is not named: %s", log)
	}
	wantError(t, r.stage(v, access(v)), codes.FailedPrecondition, named)
	found := r.CheckHealth(r.ctx(), driver.Conditions{})
	if !strings.Contains(found[v.GetId()][driver.ReasonMountedElsewhere], named) {
		t.Errorf("the health of the volume is %q, want the holder named", found)
	}
	_, err := r.machine.LVMD.DeleteVolume(r.ctx(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
	wantError(t, err, codes.FailedPrecondition, named)
	r.wantLayers(0)

	must.Succeed(t, agent.Kill())
	waittest.Until(t, "the file system is free", func() bool {
		inUse, err := r.machine.Mounts.InUse(deviceOf(v))
		return !inUse && err == nil
	})
	if found := r.CheckHealth(r.ctx(), driver.Conditions{}); len(found) > 0 {
		t.Errorf("free again, the health of the volumes is %q", found)
	}
	must.Succeed(t, r.stage(v, access(v)))
	if found := r.CheckHealth(r.ctx(), driver.Conditions{}); len(found) > 0 {
		t.Errorf("staged, the health of the volumes is %q", found)
	}
	r.wantFile(filepath.Join(r.staging(v), "file"), "precious")
	must.Succeed(t, r.unstage(v))
	r.delete(v)
	r.waitForSpace()
}
