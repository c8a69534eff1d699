package layout

import "math"

// ExtentsFor is the number of extents that hold size bytes: size divided by
// extentSize, rounded up, and at least one. ok is false when the result's
// bytes would not fit into an int64. size is at least 0, extentSize at least 1.
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
