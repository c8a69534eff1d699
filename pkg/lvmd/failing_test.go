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
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestADiskThatFailsACommandIsToldUntilOneGoesWellOrAWhilePassed(t *testing.T) {
	for _, c := range []struct {
		name string
		// format has mkfs fail instead of LVM.
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
			told := func() bool {
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
			if !c.format && !told() {
				t.Error("it is not told")
			}
			d.delete(d.create(fsRequest("pvc-1", 4, "ext4")).GetId())
			if told() {
				t.Error("it is told although a command went well")
			}
			if c.format {
				return // Its removal went well: that ends it, too.
			}
			fail()
			d.model.mu.Lock()
			d.failingFor = time.Millisecond
			d.model.mu.Unlock()
			waittest.Until(t, "it is forgiven", func() bool { return !told() })
			d.checkClean()
		})
	}
}

func TestErrorsSayThatItIsTheDisk(t *testing.T) {
	for _, err := range []error{
		lvm.ErrDeviceMissing,
		// All disks of the group fail at once: LVM knows no such group.
		&lvm.CommandError{Command: "lvextend", Message: `Volume group "carve" not found`, Err: lvm.ErrNotFound},
		fmt.Errorf("clearing: %w", unix.EIO),
		&lvm.CommandError{Command: "lvcreate", Err: lvm.ErrUnavailable},
	} {
		wantCode(t, publicError("growing", err), codes.Unavailable, names.ReasonDeviceMissing)
	}
	wantCode(t, publicError("growing", errors.New("whatever")), codes.Internal, names.ReasonCommandFailed)
}

func TestOnlyWhatLVMHasNotFinishedMakingIsHalfMade(t *testing.T) {
	raid := lvm.Layout{Type: lvm.RAID1, Mirrors: 1}
	volume := func(layout lvm.Layout, skip bool, tags ...string) lvm.Volume {
		return lvm.Volume{Name: "cv1", Layout: layout, Tags: tags, Attr: lvm.Attr{SkipActivation: skip}}
	}
	bare := lvm.Volume{Name: "cv1_rmeta_0"}
	for _, c := range []struct {
		name    string
		volumes []lvm.Volume
		want    bool
	}{
		{"its bookkeeping lies bare and it is not activated", []lvm.Volume{volume(raid, true, tagMarker), bare}, true},
		{"it is whole", []lvm.Volume{volume(raid, false, tagMarker)}, false},
		{"an administrator forbade its activation", []lvm.Volume{volume(raid, true, tagMarker)}, false},
		{"it gets another image", []lvm.Volume{volume(raid, false, tagMarker), bare}, false},
		{"it is not ours", []lvm.Volume{volume(raid, true), bare}, false},
		{"it is a snapshot", []lvm.Volume{volume(lvm.Layout{Type: lvm.Linear}, true, tagMarker), bare}, false},
		{"the bookkeeping is another volume's", []lvm.Volume{volume(raid, true, tagMarker), {Name: "cv2_rmeta_0"}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := halfMade(&lvm.Group{Volumes: c.volumes})["cv1"]; got != c.want {
				t.Errorf("half made: %v", got)
			}
		})
	}
}
