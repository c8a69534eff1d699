package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lock makes changes to one cluster happen one after the other, in all processes.
// The lock's file is beside the cluster's folder and stays: if it were removed, a
// process that waits for the lock and one that comes later would lock different files.
func (c *Cluster) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(c.dir), 0o755); err != nil {
		return nil, fmt.Errorf("lock cluster %s: %w", c.name, err)
	}
	file, err := os.OpenFile(c.dir+".lock", os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock cluster %s: %w", c.name, err)
	}
	for waiting := false; ; waiting = true {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = file.Close()
			return nil, fmt.Errorf("lock cluster %s: %w", c.name, err)
		}
		if !waiting {
			c.progress.say("waiting for another command that changes cluster %s", c.name)
		}
		select {
		case <-ctx.Done():
			_ = file.Close()
			return nil, fmt.Errorf("wait for another command that changes cluster %s: %w", c.name, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
