//go:build kernel

package filesystem

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/command"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// e2fsck waits for a device that does not answer, so SIGKILL does not end it.
func TestAToolThatHangsInTheKernelKeepsOthersFromItsDeviceOnly(t *testing.T) {
	const name, device = "carve-hanging", "/dev/mapper/carve-hanging"
	dmsetup := func(args ...string) {
		t.Helper()
		cmd := exec.Command("dmsetup", args...)
		cmd.Env = append(os.Environ(), "DM_DISABLE_UDEV=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("dmsetup %v: %v\n%s", args, err, out)
		}
	}
	dmsetup("create", name, "--table", "0 131072 linear /dev/vdc 0")
	t.Cleanup(func() {
		dmsetup("resume", name)
		dmsetup("remove", "--retry", name)
	})
	must.Succeed(t, Format(t.Context(), device, FormatOptions{Type: Ext4, UUID: testUUID}))
	debugfs(t, device, "set_super_value state 3")
	alias := filepath.Join(t.TempDir(), "alias")
	must.Succeed(t, os.Symlink(device, alias))
	before := command.Stuck()
	dmsetup("suspend", "--noflush", "--nolockfs", name)

	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	err := Check(ctx, device, Ext4, CheckOptions{Memory: checkMemory, Waiting: func(waiting bool) {
		if waiting {
			giveUp()
		}
	}})
	var killed *command.KilledError
	if !errors.Is(err, blockdev.ErrTimedOut) || !errors.As(err, &killed) || !killed.Stuck {
		t.Fatalf("the check was given up: got %v, want that it was killed, hangs and %v", err, blockdev.ErrTimedOut)
	}
	select {
	case <-killed.Gone:
		t.Error("the error says that the tool is gone while it hangs")
	default:
	}
	if n := command.Stuck() - before; n != 1 {
		t.Errorf("%d processes count as stuck, want 1", n)
	}
	for what, err := range map[string]error{
		"a second check":          Check(t.Context(), device, Ext4, CheckOptions{}),
		"mkfs":                    Format(t.Context(), device, FormatOptions{Type: Ext4, UUID: testUUID}),
		"a probe by another name": func() error { _, err := Probe(alias); return err }(),
	} {
		if !errors.Is(err, command.ErrHangs) || !errors.Is(err, blockdev.ErrTimedOut) {
			t.Errorf("%s while the first check hangs: got %v, want %v", what, err, command.ErrHangs)
		}
	}
	other := formatted(t, Ext4)
	must.Succeed(t, Check(t.Context(), other, Ext4, CheckOptions{Memory: checkMemory}))

	dmsetup("resume", name)
	<-killed.Gone
	waittest.Succeeds(t, "the tool is gone", func() error { return command.Hangs(device) })
	must.Succeed(t, Check(t.Context(), device, Ext4, CheckOptions{Memory: checkMemory}))
	if info, err := Probe(device); err != nil || info.NeedsCheck {
		t.Errorf("after the device answers: %+v, %v", info, err)
	}
	if n := command.Stuck() - before; n != 0 {
		t.Errorf("%d processes count as stuck after the device answers", n)
	}
}
