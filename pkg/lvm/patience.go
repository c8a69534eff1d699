package lvm

import (
	"fmt"
	"time"
)

// readTimeout is how long a read of a label or of metadata may take.
const readTimeout = 10 * time.Second

// patiently is what a device says when it is read, or ErrTimedOut. A device that
// does not answer is not read again until it does: whoever waits for it cannot
// be called back.
func patiently[T any](h *Host, device string, read func(device string) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	silent := fmt.Errorf("%s: %w: it does not answer", device, ErrTimedOut)
	h.mu.Lock()
	since, busy := h.reading[device]
	if busy && time.Since(since) >= readTimeout {
		h.mu.Unlock()
		return none, silent
	}
	if !busy {
		h.reading[device] = time.Now()
	}
	h.mu.Unlock()
	done := make(chan result, 1)
	go func() {
		value, err := read(device)
		if !busy {
			h.mu.Lock()
			delete(h.reading, device)
			h.mu.Unlock()
		}
		done <- result{value, err}
	}()
	timeout := time.NewTimer(readTimeout)
	defer timeout.Stop()
	select {
	case r := <-done:
		return r.value, r.err
	case <-timeout.C:
		return none, silent
	}
}
