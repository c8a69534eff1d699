//go:build kernel

package lvm_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func beforeExtending(t *testing.T, command string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "lvm")
	script := fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = lvextend ]; then %s; fi\nexec lvm \"$@\"\n", command)
	must.Succeed(t, os.WriteFile(program, []byte(script), 0o700)) //nolint:gosec // it is run
	return program
}

// The administrator's command does not wait for LVM's lock, and begins between the check of the
// sequence number and LVM's own command.
func TestNoOtherProgramChangesAGroupBeforeACommandThatGoesByItsNumber(t *testing.T) {
	const name = "carve-test"
	group(t, name)
	said := filepath.Join(t.TempDir(), "said")
	theirs := []string{"lvcreate", "--yes", "--extents", "1", "--name", "theirs", name, "--config", handConfig + " global { wait_for_locks=0 }"}
	h := hostOf(t, beforeExtending(t, fmt.Sprintf("lvm '%s' > %s 2>&1", strings.Join(theirs, "' '"), said)))
	must.Get(h.Scan(t.Context(), []string{name}))(t)
	must.Succeed(t, h.Create(t.Context(), lvm.CreateOptions{Group: name, Volume: "ours", Extents: 1}))
	before := must.Get(h.Metadata(name))(t).Seqno
	must.Succeed(t, h.ExtendAt(t.Context(), before, name, "ours", 3))
	words := string(must.Get(os.ReadFile(said))(t))
	if now := must.Get(h.Metadata(name))(t).Seqno; now != before+1 || !strings.Contains(words, "lock") {
		t.Errorf("sequence number %d, then %d; the other program said %q, want that it gets no lock", before, now, words)
	}
	if out, err := exec.Command("lvm", theirs...).CombinedOutput(); err != nil {
		t.Errorf("after the command the other program gets no lock: %v: %s", err, out)
	}
}

func TestAScanThatWaitsForALockIsMadeOnce(t *testing.T) {
	const name = "carve-test"
	group(t, name)
	dir := t.TempDir()
	must.Succeed(t, lvm.MakeSystemDir(dir))
	var scans atomic.Int64
	h := must.Get(lvm.NewHost(&lvm.Runner{
		Binary: "lvm", Timeout: 5 * time.Second, SystemDir: dir,
		Observe: func(_ context.Context, r lvm.Result) {
			if r.Command == "fullreport" {
				scans.Add(1)
			}
		},
	}))(t)
	found := must.Get(h.Scan(t.Context(), []string{name}))(t)
	h.Pin(name, found[0].Identity())
	lock := must.Get(os.OpenFile(filepath.Join(lvm.LockDir, "V_"+name), os.O_CREATE|os.O_RDWR, 0o600))(t)
	defer lock.Close()
	must.Succeed(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	scans.Store(0)
	if _, err := h.Scan(t.Context(), []string{name}); !errors.Is(err, lvm.ErrTimedOut) {
		t.Errorf("the scan ended with error %v, want ErrTimedOut", err)
	}
	if n := scans.Load(); n != 1 {
		t.Errorf("%d commands waited for the lock, want 1", n)
	}
	must.Succeed(t, unix.Flock(int(lock.Fd()), unix.LOCK_UN))
	if found := must.Get(h.Scan(t.Context(), []string{name}))(t); len(found) != 1 {
		t.Errorf("when the lock is free, %d groups are found, want 1", len(found))
	}
}

// The disk stops answering just before the command begins.
func TestACommandThatHangsKeepsTheLockThatWasTakenForIt(t *testing.T) {
	const name, disk, start = "carve-test", "carve-silent", 8192
	sectors := must.Get(blockdev.Sectors(must.Get(blockdev.NumberOf("/dev/vdb"))(t)))(t)
	dmsetup(t, "create", disk, "--table", fmt.Sprintf("0 %d linear /dev/vdb %d", sectors-start, start))
	t.Cleanup(func() { dmsetup(t, "remove", "--retry", disk) })
	lvmByHand(t, "vgcreate", "--yes", name, "/dev/mapper/"+disk)
	t.Cleanup(func() {
		lvmByHand(t, "vgremove", "--yes", "--force", name)
		lvmByHand(t, "pvremove", "--yes", "/dev/mapper/"+disk)
	})
	dir := t.TempDir()
	must.Succeed(t, lvm.MakeSystemDir(dir))
	h := must.Get(lvm.NewHost(&lvm.Runner{
		Binary:  beforeExtending(t, "DM_DISABLE_UDEV=1 dmsetup suspend --noflush --nolockfs --noudevsync "+disk),
		Timeout: 5 * time.Second, SystemDir: dir,
	}))(t)
	must.Get(h.Scan(t.Context(), []string{name}))(t)
	must.Succeed(t, h.Create(t.Context(), lvm.CreateOptions{Group: name, Volume: "ours", Extents: 1}))
	before := must.Get(h.Metadata(name))(t).Seqno
	err := h.ExtendAt(t.Context(), before, name, "ours", 3)
	lock := must.Get(os.OpenFile(filepath.Join(lvm.LockDir, "V_"+name), os.O_CREATE|os.O_RDWR, 0o600))(t)
	defer lock.Close()
	locked := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	dmsetup(t, "resume", "--noudevsync", disk)
	if !errors.Is(err, lvm.ErrTimedOut) || !errors.Is(locked, unix.EWOULDBLOCK) {
		t.Errorf("the command ended with error %v, want ErrTimedOut; while it hung, the group was locked with error %v, want EWOULDBLOCK", err, locked)
	}
	waittest.Succeeds(t, "the lock is free", func() error { return unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	must.Succeed(t, unix.Flock(int(lock.Fd()), unix.LOCK_UN))
}
