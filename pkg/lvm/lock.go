package lvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/blockdev"
)

// LockDir is where LVM keeps its locks.
const LockDir = "/run/lock/lvm"

const lockLook = 10 * time.Millisecond

// lockGroup takes LVM's lock of a group, or returns ErrBusy.
func lockGroup(dir, group string) (unlock func(), err error) {
	lock, err := openLock(dir, group)
	if err != nil {
		return nil, err
	}
	return func() {
		// Closing does not unlock the file while a process that is being started has a copy of
		// it.
		_ = unix.Flock(int(lock.Fd()), unix.LOCK_UN)
		_ = lock.Close()
	}, nil
}

func openLock(dir, group string) (*os.File, error) {
	path := filepath.Join(dir, "V_"+group)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("lock of volume group %q: %w", group, err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of volume group %q: %w", group, err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	var locked, now unix.Stat_t
	if err == nil {
		err = errors.Join(unix.Fstat(int(f.Fd()), &locked), unix.Stat(path, &now))
	}
	// LVM removes the file when it unlocks, so this file may no longer be the lock.
	if err == nil && (locked.Ino != now.Ino || locked.Dev != now.Dev) {
		err = os.ErrNotExist
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock of volume group %q: %w: %w", group, ErrBusy, err)
	}
	return f, nil
}

func waitForLock(ctx context.Context, dir, group string) (*os.File, error) {
	tick := time.NewTicker(lockLook)
	defer tick.Stop()
	for {
		lock, err := openLock(dir, group)
		if !errors.Is(err, ErrBusy) {
			return lock, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("another process has the lock of volume group %q: %w", group, blockdev.TimedOut(ctx))
		}
	}
}

// changeAt is change if the group has this sequence number, and otherwise returns ErrChanged.
// It holds LVM's lock of the group from the check until the command is gone, so that no other
// program changes the group in between. The command inherits the lock: one that is killed and
// hangs in the kernel keeps it as any LVM command would, even after this process ends.
func (c *commands) changeAt(ctx context.Context, seqno uint64, group, command string, args ...string) (err error) {
	waiting, cancel := context.WithTimeout(ctx, c.runner.Timeout)
	defer cancel()
	lock, err := waitForLock(waiting, LockDir, group)
	if err != nil {
		return err
	}
	defer func() {
		// Unlocking would take the lock from a hanging command, too.
		if !errors.Is(err, ErrTimedOut) {
			_ = unix.Flock(int(lock.Fd()), unix.LOCK_UN)
		}
		_ = lock.Close()
	}()
	now, err := c.disks.Metadata(group)
	if err != nil {
		return err
	}
	if now.Seqno != seqno {
		return fmt.Errorf("volume group %q has sequence number %d, not %d: %w", group, now.Seqno, seqno, ErrChanged)
	}
	return c.changeHolding(ctx, lock, c.locksApart(), group, command, args...)
}

// locksApart gives a command a lock directory of its own: we hold the group's lock for it.
func (c *commands) locksApart() string {
	return fmt.Sprintf("global { locking_dir=%q }", filepath.Join(c.runner.SystemDir, "locks"))
}
