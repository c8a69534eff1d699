package filesystem

import (
	"io"
	"math"
	"math/bits"
	"os"
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

// sizeOf multiplies what a superblock says, which may be anything: false when
// the product is no size that a file system can have.
func sizeOf(blocks, blockSize uint64) (int64, bool) {
	high, low := bits.Mul64(blocks, blockSize)
	if high != 0 || low == 0 || low > math.MaxInt64 {
		return 0, false
	}
	return int64(low), true
}
