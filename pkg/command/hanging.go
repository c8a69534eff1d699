package command

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrHangs means that Run started no program: an earlier one on the same device was killed and
// is not gone. It may still be writing.
var ErrHangs = errors.New("a program that was killed still waits in the kernel for the device")

// Hangs returns ErrHangs while an abandoned program on the device is not gone.
func Hangs(device string) error {
	hanging.mu.Lock()
	defer hanging.mu.Unlock()
	if hanging.on[identity(device)] > 0 {
		return fmt.Errorf("%s: %w", device, ErrHangs)
	}
	return nil
}

var hanging = hung{on: map[string]int{}}

type hung struct {
	mu sync.Mutex
	on map[string]int
}

func (h *hung) add(device string, p *Process) {
	if device == "" {
		return
	}
	device = identity(device)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.on[device]++
	go func() {
		<-p.Gone()
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.on[device]--; h.on[device] == 0 {
			delete(h.on, device)
		}
	}()
}

// identity returns the same name for all nodes of a block device.
func identity(device string) string {
	var s unix.Stat_t
	if err := unix.Stat(device, &s); err != nil || s.Mode&unix.S_IFMT != unix.S_IFBLK {
		return device
	}
	return fmt.Sprintf("device %d:%d", unix.Major(s.Rdev), unix.Minor(s.Rdev))
}
