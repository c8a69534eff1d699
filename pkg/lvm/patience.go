package lvm

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
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
	if busy && time.Since(since) >= h.patience {
		h.mu.Unlock()
		return none, silent
	}
	if !busy {
		h.reading[device] = time.Now()
	}
	h.mu.Unlock()
	done := make(chan result, 1)
	var late atomic.Bool
	go func() {
		value, err := read(device)
		if !busy {
			h.mu.Lock()
			delete(h.reading, device)
			h.mu.Unlock()
		}
		done <- result{value, err}
		if late.Load() {
			h.answered()
		}
	}()
	timeout := time.NewTimer(h.patience)
	defer timeout.Stop()
	select {
	case r := <-done:
		return r.value, r.err
	case <-timeout.C:
		late.Store(true)
		return none, silent
	}
}

// silent returns the paths of the block devices that do not answer, of those that LVM
// looks at.
func (h *Host) silent() []string {
	all, err := ListBlockDevices("/")
	if err != nil {
		return nil // LVM may do better
	}
	var mu sync.Mutex
	var found []string
	var asking sync.WaitGroup
	for _, d := range all {
		if d.LogicalVolume || strings.HasPrefix(d.Mapping, "carve.") || h.accepts != nil && !h.accepts(&d) {
			continue
		}
		asking.Go(func() {
			if _, err := patiently(h, d.Path, readBeginning); !errors.Is(err, ErrTimedOut) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			found = append(found, d.Path)
			if d.Mapping != "" {
				found = append(found, "/dev/mapper/"+d.Mapping)
			}
		})
	}
	asking.Wait()
	slices.Sort(found)
	return found
}

// readBeginning reads what LVM reads of every device, from the device itself.
func readBeginning(path string) (struct{}, error) {
	f, err := os.Open(path)
	if err != nil {
		return struct{}{}, err
	}
	defer f.Close()
	// The kernel would answer from its cache for a disk that is dead.
	if err := unix.Fadvise(int(f.Fd()), 0, labelSectors*sectorSize, unix.FADV_DONTNEED); err != nil {
		return struct{}{}, fmt.Errorf("%s: %w", path, err)
	}
	_, err = f.ReadAt(make([]byte, labelSectors*sectorSize), 0)
	return struct{}{}, err
}
