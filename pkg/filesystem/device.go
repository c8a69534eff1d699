package filesystem

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/bits"
	"os"
	"time"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/command"
)

// deviceSize returns the size in bytes of a block device or an image file.
func deviceSize(device string) (int64, error) {
	f, err := os.Open(device)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.Seek(0, io.SeekEnd)
}

// answerTimeout bounds what is read and written by this process itself: a superblock.
const answerTimeout = time.Minute

// answering bounds the wait for devices that do not answer.
var answering blockdev.Guard

// Stuck counts the reads and writes that were given up and still wait in the kernel for a device.
// What tools wait for, command.Stuck counts.
func Stuck() int { return answering.Stuck() }

// do is Do with the time that a superblock may take.
func do[T any](device string, operation func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	return Do(ctx, device, operation)
}

// Do runs an operation on a device, unless a tool that was killed still waits for it. It fails
// with blockdev.ErrTimedOut when the device does not answer until ctx is done: the operation may
// go on then, and Stuck counts it.
func Do[T any](ctx context.Context, device string, operation func() (T, error)) (T, error) {
	var none T
	if err := command.Hangs(device); err != nil {
		return none, fmt.Errorf("%w: %w", blockdev.ErrTimedOut, err)
	}
	return blockdev.Do(ctx, &answering, device, func(string) (T, error) { return operation() })
}

// sizeOf multiplies what a superblock says, which may be anything: false when
// the product is no size that a file system can have.
func sizeOf(blocks, blockSize uint64) (int64, bool) {
	high, low := bits.Mul64(blocks, blockSize)
	if high != 0 || low == 0 || low > math.MaxInt64 {
		return 0, false
	}
	return int64(low), true
}
