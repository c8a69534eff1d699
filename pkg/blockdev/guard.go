package blockdev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Guard bounds the wait for devices, any of which may never answer: nothing can interrupt a
// process that waits in the kernel for a dead disk. After an abandoned wait, a device gets no
// other operation until it answers, so retries do not use up threads. The zero value is ready
// for use. A Guard must not be copied, and is safe for concurrent use.
type Guard struct {
	// Answered, unless nil, is called when a device answers after an abandoned wait. Set it
	// before use.
	Answered func()

	mu        sync.Mutex
	abandoned map[string]int
}

// Do runs an operation on a device and returns its result. ctx bounds the wait, not the
// operation. Do returns ErrTimedOut when the wait ends, and at once while an abandoned
// operation goes on.
func Do[T any](ctx context.Context, g *Guard, device string, operation func(device string) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	if g.waits(device) {
		return none, fmt.Errorf("%s: %w: it has not answered yet what was asked before", device, ErrTimedOut)
	}
	ended := make(chan result, 1)
	go func() {
		defer close(ended)
		value, err := operation(device)
		ended <- result{value, err}
	}()
	select {
	case r, is := <-ended:
		if !is {
			r.err = fmt.Errorf("%s: the operation ended without a result", device) // after runtime.Goexit
		}
		return r.value, r.err
	case <-ctx.Done():
	}
	g.count(device, 1)
	go func() {
		<-ended
		g.count(device, -1)
		if g.Answered != nil {
			g.Answered()
		}
	}()
	return none, fmt.Errorf("%s: %w: it does not answer", device, TimedOut(ctx))
}

func (g *Guard) waits(device string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.abandoned[device] > 0
}

func (g *Guard) count(device string, by int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.abandoned == nil {
		g.abandoned = map[string]int{}
	}
	if g.abandoned[device] += by; g.abandoned[device] == 0 {
		delete(g.abandoned, device)
	}
}

// Stuck counts the abandoned operations that go on. Each keeps a thread.
func (g *Guard) Stuck() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := 0
	for _, n := range g.abandoned {
		all += n
	}
	return all
}

// Each runs Do on the devices in parallel, once per path. It runs nothing while any of them
// does not answer. An ErrTimedOut hides other errors, which say more of their devices.
func (g *Guard) Each(ctx context.Context, devices []string, operation func(device string) error) error {
	for _, device := range devices {
		if g.waits(device) {
			return fmt.Errorf("%s: %w: it has not answered yet what was asked before", device, ErrTimedOut)
		}
	}
	pending := map[string]bool{}
	ended := make(chan error, len(devices))
	for _, device := range devices {
		if pending[device] {
			continue
		}
		pending[device] = true
		go func() {
			_, err := Do(ctx, g, device, func(device string) (struct{}, error) { return struct{}{}, operation(device) })
			ended <- err
		}()
	}
	var failed, timedOut error
	for range pending {
		if err := <-ended; errors.Is(err, ErrTimedOut) {
			timedOut = err
		} else {
			failed = errors.Join(failed, err)
		}
	}
	if timedOut != nil {
		return timedOut
	}
	return failed
}

// Flush flushes a device's cache.
func Flush(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// OpenUncached opens a device and drops its first length bytes, or all if length is 0, from the
// page cache: the kernel would answer for a dead disk from there.
func OpenUncached(path string, length int64) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Fadvise(int(f.Fd()), 0, length, unix.FADV_DONTNEED); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// ReadHead reads the first length bytes from the device itself.
func ReadHead(path string, length int64) error {
	f, err := OpenUncached(path, length)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.ReadAt(make([]byte, length), 0)
	return err
}
