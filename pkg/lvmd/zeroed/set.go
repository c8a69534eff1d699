package zeroed

import (
	"cmp"
	"slices"
)

// Span excludes To.
type Span struct{ From, To int64 }

// Set is sorted; its spans are not empty and neither overlap nor touch. Its methods do not modify
// their operands.
type Set []Span

// Plus returns the union with a span.
func (s Set) Plus(add Span) Set {
	if add.From >= add.To {
		return s
	}
	// i is the first span that touches add or lies behind it, j the first that lies behind it and
	// does not touch it.
	i, _ := slices.BinarySearchFunc(s, add.From, func(e Span, at int64) int { return cmp.Compare(e.To, at) })
	j := i
	for j < len(s) && s[j].From <= add.To {
		add = Span{min(add.From, s[j].From), max(add.To, s[j].To)}
		j++
	}
	return slices.Concat(s[:i], Set{add}, s[j:])
}

// Minus returns the set without a span.
func (s Set) Minus(cut Span) Set {
	if cut.From >= cut.To {
		return s
	}
	i, _ := slices.BinarySearchFunc(s, cut.From+1, func(e Span, at int64) int { return cmp.Compare(e.To, at) })
	var kept Set
	j := i
	for ; j < len(s) && s[j].From < cut.To; j++ {
		if s[j].From < cut.From {
			kept = append(kept, Span{s[j].From, cut.From})
		}
		if s[j].To > cut.To {
			kept = append(kept, Span{cut.To, s[j].To})
		}
	}
	return slices.Concat(s[:i], kept, s[j:])
}

func (s Set) holds(part Span) bool {
	if part.From >= part.To {
		return true
	}
	i, _ := slices.BinarySearchFunc(s, part.From+1, func(e Span, at int64) int { return cmp.Compare(e.To, at) })
	return i < len(s) && s[i].From <= part.From && part.To <= s[i].To
}

func (s Set) size() int64 {
	var n int64
	for _, e := range s {
		n += e.To - e.From
	}
	return n
}
