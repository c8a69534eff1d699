package layout

import "math"

// ExtentsFor returns size divided by extentSize, rounded up, and at least 1. ok is false if
// that many extents overflow an int64 in bytes. size must be at least 0, extentSize at least 1.
func ExtentsFor(size, extentSize int64) (extents int64, ok bool) {
	n := size / extentSize
	if size%extentSize != 0 {
		n++
	}
	if n == 0 {
		n = 1
	}
	if n > math.MaxInt64/extentSize {
		return 0, false
	}
	return n, true
}
