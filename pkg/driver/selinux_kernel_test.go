//go:build kernel && selinux

package driver_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/carve-csi/carve/pkg/must"
)

// Labels of two containers and their files, as a container runtime chooses
// them.
const (
	oneContainer     = "system_u:system_r:container_t:s0:c1,c2"
	oneLabel         = "system_u:object_r:container_file_t:s0:c1,c2"
	anotherContainer = "system_u:system_r:container_t:s0:c3,c4"
	anotherLabel     = "system_u:object_r:container_file_t:s0:c3,c4"
)

func inContainer(t *testing.T, label, script string) (string, error) {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), "runcon", label, "sh", "-c", script).CombinedOutput()
	return strings.TrimSpace(string(output)), err
}

// TestRealSELinuxKeepsContainersApart mounts volumes as the kubelet does with
// SELinux enforcing and seLinuxMount in the CSIDriver: all files have the Pod's
// label at once, and containers with other categories cannot reach them.
func TestRealSELinuxKeepsContainersApart(t *testing.T) {
	r := newReal(t, "/dev/vdb", "disk")
	labelled := filesystemAccess(writer, `context="`+oneLabel+`"`)
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			v := r.volume("labelled-"+fsType, fsType)
			must.Succeed(r.t, r.stage(v, labelled))
			first, second := r.target(v, "one"), r.target(v, "two")
			must.Succeed(r.t, r.publish(v, "one", labelled, false))

			label := make([]byte, 256)
			n, err := unix.Getxattr(first, "security.selinux", label)
			must.Succeed(r.t, err)
			if got := strings.TrimRight(string(label[:n]), "\x00"); got != oneLabel {
				t.Errorf("the label of the file system's root: got %q, want %q", got, oneLabel)
			}
			if output, err := inContainer(t, oneContainer, "echo kept > "+first+"/file"); err != nil {
				t.Errorf("the Pod's container writes to its volume: %v: %s", err, output)
			}

			// A second Pod with the same label.
			must.Succeed(r.t, r.publish(v, "two", labelled, false))
			if got, err := inContainer(t, oneContainer, "cat "+second+"/file"); err != nil || got != "kept" {
				t.Errorf("a second container of the label reads the file: got %q, %v, want %q", got, err, "kept")
			}
			got, err := inContainer(t, anotherContainer, "cat "+first+"/file")
			if err == nil || !strings.Contains(got, "Permission denied") {
				t.Errorf("a container of other categories reads the file: got %q, %v, want it to be denied", got, err)
			}
			if got, err := inContainer(t, anotherContainer, "echo spoilt > "+first+"/file"); err == nil {
				t.Errorf("a container of other categories writes to the file: got %q, want it to be denied", got)
			}

			// A Pod with another label cannot have the volume while it is
			// mounted.
			wantError(t, r.stage(v, filesystemAccess(writer, `context="`+anotherLabel+`"`)), codes.AlreadyExists, anotherLabel)
			wantError(t, r.stage(v, filesystemAccess(writer)), codes.AlreadyExists, oneLabel)

			must.Succeed(r.t, r.unpublish(v, "two"))
			must.Succeed(r.t, r.unpublish(v, "one"))
			must.Succeed(r.t, r.unstage(v))

			// The label belonged to the mount, not to the files.
			must.Succeed(r.t, r.stage(v, filesystemAccess(writer, `context="`+anotherLabel+`"`)))
			if got, err := inContainer(t, anotherContainer, "cat "+filepath.Join(r.staging(v), "file")); err != nil || got != "kept" {
				t.Errorf("a container of the second label reads the file later: got %q, %v, want %q", got, err, "kept")
			}
			must.Succeed(r.t, r.unstage(v))

			wantError(t, r.stage(v, filesystemAccess(writer, `context="system_u:object_r:no_such_t:s0"`)), codes.Internal, "invalid argument: the node's kernel log says why")
			r.wantLayers(0)
			r.delete(v)
		})
	}
	r.waitForSpace()
}
