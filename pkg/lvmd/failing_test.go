//go:build !kernel

package lvmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestADiskThatFailsACommandIsReportedUntilOneGoesWellOrAWhilePassed(t *testing.T) {
	for _, c := range []struct {
		name   string
		format bool
		err    error
	}{
		{"it takes no metadata", false, &lvm.CommandError{Command: "lvcreate", Message: "Error writing device", Err: lvm.ErrDeviceMissing}},
		{"it cannot be flushed", false, fmt.Errorf("flushing the metadata: %w", lvm.ErrDeviceMissing)},
		{"it takes no file system", true, fmt.Errorf("mkfs.ext4: %w", unix.EIO)},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			var failing atomic.Bool
			m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
				if failing.Load() && !c.format && op == lvmfake.OpCreate {
					return c.err
				}
				return nil
			}
			m.formatHook = func(context.Context, string) error {
				if failing.Load() && c.format {
					return c.err
				}
				return nil
			}
			d := m.start(t)
			reported := func() bool {
				return slices.ContainsFunc(d.class().GetConditions(), func(c *lvmdv1.Condition) bool { return c.GetType() == "DiskErrors" })
			}
			fail := func() {
				t.Helper()
				failing.Store(true)
				_, err := d.client.CreateVolume(t.Context(), fsRequest("pvc-1", 4, "ext4"))
				wantCode(t, err, codes.Unavailable, names.ReasonDeviceMissing)
				failing.Store(false)
			}
			fail()
			if !c.format && !reported() {
				t.Error("it is not reported")
			}
			d.delete(d.create(fsRequest("pvc-1", 4, "ext4")).GetId())
			if reported() {
				t.Error("it is reported although a command went well")
			}
			if c.format {
				return // Its removal succeeded, which ends the condition, too.
			}
			fail()
			d.failingFor.Store(int64(time.Millisecond))
			waittest.Until(t, "it is not reported any more", func() bool { return !reported() })
			d.checkClean()
		})
	}
}

func TestErrorsSayThatItIsTheDisk(t *testing.T) {
	for _, err := range []error{
		lvm.ErrDeviceMissing,
		// All disks of the group fail at once: LVM does not find the group.
		&lvm.CommandError{Command: "lvextend", Message: `Volume group "carve" not found`, Err: lvm.ErrNotFound},
		fmt.Errorf("clearing: %w", unix.EIO),
		&lvm.CommandError{Command: "lvcreate", Err: lvm.ErrUnavailable},
	} {
		wantCode(t, apierror.From("growing", err), codes.Unavailable, names.ReasonDeviceMissing)
	}
	wantCode(t, apierror.From("growing", errors.New("whatever")), codes.Internal, names.ReasonCommandFailed)
}
