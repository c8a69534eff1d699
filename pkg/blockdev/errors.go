package blockdev

import (
	"context"
	"errors"
	"fmt"
)

// What can go wrong, as far as callers act on it differently.
var (
	// ErrNotFound: there is no such device, or its node leads to another one.
	ErrNotFound = errors.New("not found")
	// ErrBusy: the device is open.
	ErrBusy = errors.New("in use")
	// ErrClaimed is the ErrBusy of a device that is mounted or mapped: unlike a
	// mere opener, such as udev looking into it, that does not pass by itself.
	ErrClaimed = fmt.Errorf("%w: mounted or mapped", ErrBusy)
	// ErrNoSpace: a file's file system has too little free space.
	ErrNoSpace = errors.New("not enough space")
	// ErrNotCounted: the kernel does not count what is written to the device.
	ErrNotCounted = errors.New("what is written to it is not counted")
	// ErrTimedOut: there was no answer in time. What became of it is unknown.
	ErrTimedOut = errors.New("timed out")
)

// TimedOut is the ErrTimedOut of a context that has ended. It matches
// context.Canceled where that was no deadline.
func TimedOut(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ErrTimedOut
	}
	return fmt.Errorf("%w: %w", ErrTimedOut, ctx.Err())
}
