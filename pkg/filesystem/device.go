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

func deviceSize(device string) (int64, error) {
	f, err := os.Open(device)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.Seek(0, io.SeekEnd)
}

// answerTimeout bounds this process's own reads and writes of superblocks.
const answerTimeout = time.Minute

var answering blockdev.Guard

// Stuck counts abandoned reads and writes that still wait in the kernel for a
// device. command.Stuck counts tools.
func Stuck() int { return answering.Stuck() }

func do[T any](device string, operation func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	return Do(ctx, device, operation)
}

// Do runs an operation on a device, unless a killed tool still waits for the
// device. If the device does not answer before ctx is done, Do fails with
// blockdev.ErrTimedOut; the operation may continue, and Stuck counts it.
func Do[T any](ctx context.Context, device string, operation func() (T, error)) (T, error) {
	var none T
	if err := command.Hangs(device); err != nil {
		return none, fmt.Errorf("%w: %w", blockdev.ErrTimedOut, err)
	}
	return blockdev.Do(ctx, &answering, device, func(string) (T, error) { return operation() })
}

// sizeOf multiplies untrusted superblock fields. It returns false if the
// product is no possible file system size.
func sizeOf(blocks, blockSize uint64) (int64, bool) {
	high, low := bits.Mul64(blocks, blockSize)
	if high != 0 || low == 0 || low > math.MaxInt64 {
		return 0, false
	}
	return int64(low), true
}
