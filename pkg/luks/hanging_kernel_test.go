//go:build kernel

package luks_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/command"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/luks/lukstest"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// As many cryptsetups as may derive keys at once wait for a device that does
// not answer.
func TestCryptsetupsThatHangInTheKernelHoldUpNoOther(t *testing.T) {
	newBelow(t)
	blank(t, "/dev/vdc")
	t.Cleanup(func() { blank(t, "/dev/vdc") })
	c := luks.New("cryptsetup", cheap)
	before := command.Stuck()
	byHand(t, "dmsetup", "suspend", "--noflush", "--nolockfs", "below")
	resume := func() { byHand(t, "dmsetup", "resume", "below") }
	t.Cleanup(resume)

	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	hanging := make(chan error, 2)
	for range cap(hanging) {
		go func() { hanging <- c.Format(ctx, belowPath, lukstest.Volume, lukstest.Key) }()
	}
	waittest.Until(t, "both have begun", func() bool {
		running := 0
		for _, file := range must.Get(filepath.Glob("/proc/[0-9]*/comm"))(t) {
			if name, err := os.ReadFile(file); err == nil && string(name) == "cryptsetup\n" {
				running++
			}
		}
		return running == cap(hanging)
	})
	for range 2 {
		must.Succeed(t, c.Format(limited(t), "/dev/vdc", "other", lukstest.Key))
		must.Succeed(t, c.Test(limited(t), "/dev/vdc", "other", lukstest.Key))
	}
	giveUp()
	stuck := 0
	for range cap(hanging) {
		err := <-hanging
		if err == nil {
			t.Error("a volume was formatted on a device that does not answer")
		}
		if errors.Is(err, blockdev.ErrTimedOut) {
			stuck++
		}
	}
	if n := command.Stuck() - before; n != stuck || n == 0 {
		t.Errorf("%d processes count as stuck, and %d calls say that theirs is", n, stuck)
	}
	if err := c.Format(limited(t), belowPath, lukstest.Volume, lukstest.Key); !errors.Is(err, command.ErrHangs) {
		t.Errorf("another one on the device: got %v, want %v", err, command.ErrHangs)
	}

	resume()
	waittest.Succeeds(t, "those that were killed are gone", func() error { return command.Hangs(belowPath) })
	must.Succeed(t, c.Format(limited(t), belowPath, lukstest.Volume, lukstest.Key))
	must.Succeed(t, c.Test(limited(t), belowPath, lukstest.Volume, lukstest.Key))
	if n := command.Stuck() - before; n != 0 {
		t.Errorf("%d processes count as stuck after the device answers", n)
	}
}
