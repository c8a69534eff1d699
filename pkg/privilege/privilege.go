// Package privilege gives up the rights that a program has and does not need,
// for good: for all its threads, and for every program that it starts.
//
// The containers of the node plugin and of lvmd have to be privileged, as
// Kubernetes allows mounts that other containers see, and the host's devices, to
// privileged ones only; the processes need not stay so. What they keep, and why, is
// said in docs/explanation/security.md.
//
// cmd/node and cmd/lvmd are the callers.
package privilege

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reduce gives up all capabilities but these (unix.CAP_…), also those that a
// program run by root would get anew, and the right to get any by running a
// program that has them. It needs a program without cgo, where Go can change
// all threads at once: ENOTSUP otherwise, and nothing is changed then. A kept
// one that is not there is not gained.
func Reduce(keep ...int) error {
	var kept [2]uint32
	for _, c := range keep {
		kept[c/32] |= 1 << (c % 32)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	for i, k := range kept {
		data[i] = unix.CapUserData{Effective: k & data[i].Permitted, Permitted: k & data[i].Permitted}
	}
	// The bound first: it takes a capability to lower it, but none where a service
	// manager did.
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		if kept[c/32]&(1<<(c%32)) != 0 {
			continue
		}
		within, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0)
		if errors.Is(err, unix.EINVAL) || err == nil && within == 0 {
			continue // The running kernel does not know that one, or it is gone.
		}
		if err != nil {
			return fmt.Errorf("read the bound of capabilities: %w", err)
		}
		if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0, 0); errno != 0 {
			return fmt.Errorf("lower the bound of capabilities by %d: %w", c, errno)
		}
	}
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("renounce new privileges: %w", errno)
	}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0); errno != 0 {
		return fmt.Errorf("give up capabilities: %w", errno)
	}
	return nil
}
