package layout

import "testing"

func TestExtentsAreRoundedUp(t *testing.T) {
	for _, c := range []struct {
		size, extent, want int64
		ok                 bool
	}{
		{0, 4, 1, true}, {1, 4, 1, true}, {4, 4, 1, true}, {5, 4, 2, true},
		{1<<63 - 1, 4 << 20, 0, false}, {1 << 62, 4 << 20, 1 << 40, true},
	} {
		got, ok := ExtentsFor(c.size, c.extent)
		if got != c.want || ok != c.ok {
			t.Errorf("%d in extents of %d: %d, %v", c.size, c.extent, got, ok)
		}
	}
}
