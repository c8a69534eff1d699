package lvmd

import (
	"cmp"
	"slices"
)

// span is a stretch of bytes: from is in it, to is not.
type span struct{ from, to int64 }

// spans is a set of bytes: sorted, not empty, neither overlapping nor touching.
// Its methods leave their operands as they are.
type spans []span

// plus is the union with one more stretch.
func (s spans) plus(add span) spans {
	if add.from >= add.to {
		return s
	}
	// i is the first span that touches add or lies behind it, j the first one
	// that lies behind it and does not touch it.
	i, _ := slices.BinarySearchFunc(s, add.from, func(e span, at int64) int { return cmp.Compare(e.to, at) })
	j := i
	for j < len(s) && s[j].from <= add.to {
		add = span{min(add.from, s[j].from), max(add.to, s[j].to)}
		j++
	}
	return slices.Concat(s[:i], spans{add}, s[j:])
}

// minus is the set without a stretch.
func (s spans) minus(cut span) spans {
	if cut.from >= cut.to {
		return s
	}
	i, _ := slices.BinarySearchFunc(s, cut.from+1, func(e span, at int64) int { return cmp.Compare(e.to, at) })
	var kept spans
	j := i
	for ; j < len(s) && s[j].from < cut.to; j++ {
		if s[j].from < cut.from {
			kept = append(kept, span{s[j].from, cut.from})
		}
		if s[j].to > cut.to {
			kept = append(kept, span{cut.to, s[j].to})
		}
	}
	return slices.Concat(s[:i], kept, s[j:])
}

// holds tells whether all of a stretch is in the set.
func (s spans) holds(part span) bool {
	if part.from >= part.to {
		return true
	}
	i, _ := slices.BinarySearchFunc(s, part.from+1, func(e span, at int64) int { return cmp.Compare(e.to, at) })
	return i < len(s) && s[i].from <= part.from && part.to <= s[i].to
}

// size counts the bytes.
func (s spans) size() int64 {
	var n int64
	for _, e := range s {
		n += e.to - e.from
	}
	return n
}
