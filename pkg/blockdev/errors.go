package blockdev

import (
	"context"
	"errors"
	"fmt"
)

// Errors that callers handle differently.
var (
	// ErrNotFound: the device does not exist, or its node leads to another one.
	ErrNotFound = errors.New("not found")
	ErrBusy     = errors.New("in use")
	// ErrClaimed is an ErrBusy: the device is mounted or mapped. Unlike a mere opener, such as
	// udev, that does not pass by itself.
	ErrClaimed = fmt.Errorf("%w: mounted or mapped", ErrBusy)
	// ErrNoSpace: a file's file system lacks free space.
	ErrNoSpace    = errors.New("not enough space")
	ErrNotCounted = errors.New("what is written to it is not counted")
	// ErrTimedOut: no answer in time. The operation may have taken effect.
	ErrTimedOut = errors.New("timed out")
)

// TimedOut returns the ErrTimedOut of a context that has ended. It also matches
// context.Canceled unless the deadline was exceeded.
func TimedOut(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ErrTimedOut
	}
	return fmt.Errorf("%w: %w", ErrTimedOut, ctx.Err())
}
