package lvmfake

import (
	"testing"

	"pgregory.net/rapid"
)

func TestAStoreHasWhatWasWrittenToEachBlockLast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, want := store{}, map[int64]byte{}
		for range 20 {
			first, n := rapid.Int64Range(0, 3*pageBlocks).Draw(t, "first"), rapid.Int64Range(0, 2*pageBlocks).Draw(t, "n")
			pattern := rapid.SampledFrom([]byte{0, 1, 2}).Draw(t, "pattern")
			s.put(first, n, pattern)
			for block := first; block < first+n; block++ {
				want[block] = pattern
			}
		}
		first, n := rapid.Int64Range(0, 3*pageBlocks).Draw(t, "first"), rapid.Int64Range(0, 2*pageBlocks).Draw(t, "n")
		shown := 0
		for block := first; block < first+n; block++ {
			if got := s.get(block); got != want[block] {
				t.Fatalf("block %d has %d, want %d", block, got, want[block])
			}
			if want[block] != 0 {
				shown++
			}
		}
		got, pattern := s.count(first, n)
		if got != shown || (pattern != 0) != (shown > 0) {
			t.Fatalf("%d of %d blocks from %d show something, such as %d; want %d", got, n, first, pattern, shown)
		}
	})
}
