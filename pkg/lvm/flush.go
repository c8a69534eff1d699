package lvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
)

// flushes makes durable what was written to devices. LVM itself writes its metadata past
// the page cache and leaves it at that: in a disk with a write cache, as most have one, a
// commit can be lost with the power until the disk is flushed.
//
// It is safe for concurrent use; mu is held for moments only.
type flushes struct {
	// device flushes one device. Nothing can interrupt it while the disk is dead.
	device func(path string) error
	// answered is called when a device answers whose flush nothing waited for any more.
	answered func()

	mu sync.Mutex
	// abandoned counts, by the path of the device, the flushes that outlived their callers.
	abandoned map[string]int
}

// flushed is the end of a device's flush.
type flushed struct {
	device string
	err    error
}

// flush flushes the devices at the same time. ctx bounds the wait, not the flushes. While
// one of an earlier caller goes on, its device gets no other one: flush returns ErrTimedOut
// at once, so that a dead disk keeps one thread, however often it is tried.
func (f *flushes) flush(ctx context.Context, devices []string) error {
	if device := f.silent(devices); device != "" {
		return fmt.Errorf("flushing the metadata: %s: %w: an earlier flush has not ended", device, ErrTimedOut)
	}
	pending := map[string]bool{}
	ended := make(chan flushed, len(devices))
	for _, path := range devices {
		if !pending[path] {
			pending[path] = true
			go func() { ended <- flushed{path, f.device(path)} }()
		}
	}
	var errs []error
	for len(pending) > 0 {
		select {
		case one := <-ended:
			delete(pending, one.device)
			errs = append(errs, one.err)
		case <-ctx.Done():
			f.abandon(pending, ended)
			return fmt.Errorf("flushing the metadata: %w", timedOut(ctx.Err()))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("flushing the metadata: %w: %w", ErrDeviceMissing, err)
	}
	return nil
}

// silent returns one of the devices of which a flush was abandoned and goes on, or "".
func (f *flushes) silent(devices []string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, device := range devices {
		if f.abandoned[device] > 0 {
			return device
		}
	}
	return ""
}

// abandon counts the pending flushes until each has ended.
func (f *flushes) abandon(pending map[string]bool, ended <-chan flushed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for device := range pending {
		f.abandoned[device]++
	}
	go func() {
		for range len(pending) {
			one := <-ended
			f.mu.Lock()
			if f.abandoned[one.device]--; f.abandoned[one.device] == 0 {
				delete(f.abandoned, one.device)
			}
			f.mu.Unlock()
			f.answered()
		}
	}()
}

// stuck counts the flushes that outlived their callers and go on.
func (f *flushes) stuck() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := 0
	for _, n := range f.abandoned {
		all += n
	}
	return all
}

// flushDevice has a block device write down what is in its cache.
func flushDevice(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
