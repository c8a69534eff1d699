package blockdev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Watch sends on events when block devices other than logical volumes come, go or change, until
// ctx ends. It does not block, so events should be buffered, and bursts merge into one event.
//
// It listens to the kernel itself (NETLINK_KOBJECT_UEVENT), so it needs no udev and works in a
// container.
func Watch(ctx context.Context, events chan<- struct{}) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return fmt.Errorf("listening to the kernel's device events: %w", err)
	}
	// Group 1 is the kernel's; udev repeats events on group 2.
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("listening to the kernel's device events: %w", err)
	}
	// Wake up reads now and then to check ctx.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("listening to the kernel's device events: %w", err)
	}
	go func() {
		defer func() { _ = unix.Close(fd) }()
		buf := make([]byte, 16<<10)
		for ctx.Err() == nil {
			n, err := unix.Read(fd, buf)
			switch {
			case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
				continue
			case err != nil && !errors.Is(err, unix.ENOBUFS):
				return
			case err == nil && !concernsBlockDevice(buf[:n], isVolume):
				continue
			}
			// Lost events (ENOBUFS) may have been about anything.
			select {
			case events <- struct{}{}:
			default:
			}
		}
	}()
	return nil
}

// concernsBlockDevice parses an event: "ACTION@DEVPATH", then KEY=VALUE strings, each
// zero-terminated.
func concernsBlockDevice(event []byte, isVolume func(device string) bool) bool {
	block := false
	for field := range bytes.SplitSeq(event, []byte{0}) {
		if name, ok := bytes.CutPrefix(field, []byte("DEVNAME=")); ok && bytes.HasPrefix(name, []byte("dm-")) && isVolume(string(name)) {
			return false
		}
		block = block || bytes.Equal(field, []byte("SUBSYSTEM=block"))
	}
	return block
}

// isVolume reports whether a device-mapper device is a logical volume, or gone.
func isVolume(device string) bool {
	uuid, err := os.ReadFile("/sys/class/block/" + device + "/dm/uuid")
	return err != nil || bytes.HasPrefix(uuid, []byte(logicalVolumeUUID))
}
