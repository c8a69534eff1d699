package lvmfake

import (
	"bytes"
	"iter"
)

const pageBlocks = 1 << 10

// store has the last pattern of each block of a device; zero for zeroes and blocks never
// written. It works on ranges, because tests write whole volumes thousands of times.
type store map[int64]*[pageBlocks]byte

func (s store) get(block int64) byte {
	if page := s[block/pageBlocks]; page != nil {
		return page[block%pageBlocks]
	}
	return 0
}

func (s store) put(first, n int64, pattern byte) {
	for at, some := range runs(first, n, pageBlocks) {
		page := s[at/pageBlocks]
		if page == nil {
			if pattern == 0 {
				continue
			}
			page = new([pageBlocks]byte)
			s[at/pageBlocks] = page
		}
		fill(page[at%pageBlocks:at%pageBlocks+some], pattern)
	}
}

// count counts nonzero blocks, and returns one of the patterns.
func (s store) count(first, n int64) (blocks int, pattern byte) {
	for at, some := range runs(first, n, pageBlocks) {
		if page := s[at/pageBlocks]; page != nil {
			if more, of := dirty(page[at%pageBlocks : at%pageBlocks+some]); more > 0 {
				blocks, pattern = blocks+more, of
			}
		}
	}
	return blocks, pattern
}

func blocks(bytes int64) int64 { return (bytes + blockSize - 1) / blockSize }

// runs cuts n blocks at multiples of unit, and yields the start and length of each run.
func runs(first, n, unit int64) iter.Seq2[int64, int64] {
	return func(yield func(int64, int64) bool) {
		for n > 0 {
			some := min(n, unit-first%unit)
			if !yield(first, some) {
				return
			}
			first, n = first+some, n-some
		}
	}
}

func dirty(patterns []byte) (blocks int, pattern byte) {
	if blocks = len(patterns) - bytes.Count(patterns, []byte{0}); blocks > 0 {
		pattern = bytes.TrimLeft(patterns, "\x00")[0]
	}
	return blocks, pattern
}

func fill(b []byte, value byte) {
	if value == 0 || len(b) == 0 {
		clear(b)
		return
	}
	b[0] = value
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}
