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

// lockLook is the time between two looks whether another process has released a lock.
const lockLook = 10 * time.Millisecond

// lockGroup locks a volume group as LVM does. ErrBusy when another process has it.
func lockGroup(dir, group string) (unlock func(), err error) {
	lock, err := openLock(dir, group)
	if err != nil {
		return nil, err
	}
	return func() {
		// Closing alone does not: a process that is being started may have it, too.
		_ = unix.Flock(int(lock.Fd()), unix.LOCK_UN)
		_ = lock.Close()
	}, nil
}

// openLock is lockGroup that returns the locked file.
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
	// Unlocking removes the file: what is locked may not be the lock any more.
	if err == nil && (locked.Ino != now.Ino || locked.Dev != now.Dev) {
		err = os.ErrNotExist
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock of volume group %q: %w: %w", group, ErrBusy, err)
	}
	return f, nil
}

// waitForLock is openLock that waits while another process has the lock, as LVM's commands do.
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

// changeAt is change of a group that has this sequence number; ErrChanged if it has another one. LVM's lock
// of the group is held from the look at the number until the command is gone, so that no other program changes
// the group in between. The command has the lock, too: one that was killed and hangs in the kernel keeps it as any
// command of LVM's does, also when this process has ended.
func (c *commands) changeAt(ctx context.Context, seqno uint64, group, command string, args ...string) (err error) {
	waiting, cancel := context.WithTimeout(ctx, c.runner.Timeout)
	defer cancel()
	lock, err := waitForLock(waiting, LockDir, group)
	if err != nil {
		return err
	}
	defer func() {
		// Unlocking would take it from a command that hangs as well.
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

// locksApart has a command take its locks where no other program does: the group's own is held for it.
func (c *commands) locksApart() string {
	return fmt.Sprintf("global { locking_dir=%q }", filepath.Join(c.runner.SystemDir, "locks"))
}
