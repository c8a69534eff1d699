package lvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
)

// flush makes durable what was written to the devices. LVM itself writes its
// metadata past the page cache and leaves it at that: in a disk with a write
// cache, as most have one, a commit can be lost with the power until something
// flushes the disk. ctx bounds the wait, not the flush: nothing can call back a
// process that waits for a dead disk.
func flush(ctx context.Context, devices []string) error {
	errs := make([]error, len(devices))
	done := make(chan struct{})
	var all sync.WaitGroup
	for i, path := range devices {
		all.Go(func() { errs[i] = flushDevice(path) })
	}
	go func() {
		all.Wait()
		close(done)
	}()
	select {
	case <-done:
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("flushing the metadata: %w: %w", ErrDeviceMissing, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("flushing the metadata: %w", timedOut(ctx.Err()))
	}
}

// flushDevice has a block device write down what is in its cache.
func flushDevice(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
