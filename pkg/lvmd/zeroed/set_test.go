//go:build !kernel

package zeroed

import (
	"testing"

	"pgregory.net/rapid"
)

func TestASetOfSpansIsTheSetOfItsBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 24
		var s Set
		var bytes [size]bool
		draw := func(t *rapid.T) Span {
			from := rapid.Int64Range(0, size).Draw(t, "from")
			return Span{from, rapid.Int64Range(from, size).Draw(t, "to")}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				p := draw(t)
				s = s.Plus(p)
				for i := p.From; i < p.To; i++ {
					bytes[i] = true
				}
			},
			"cut": func(t *rapid.T) {
				p := draw(t)
				s = s.Minus(p)
				for i := p.From; i < p.To; i++ {
					bytes[i] = false
				}
			},
			"": func(t *rapid.T) {
				p, all, n := draw(t), true, int64(0)
				for i, in := range bytes {
					if in {
						n++
					} else if int64(i) >= p.From && int64(i) < p.To {
						all = false
					}
				}
				if s.holds(p) != all || s.size() != n {
					t.Fatalf("%v holds %v: %v, want %v; size %d, want %d", s, p, s.holds(p), all, s.size(), n)
				}
				for i := 1; i < len(s); i++ {
					if s[i-1].To >= s[i].From {
						t.Fatalf("%v is not sorted and apart", s)
					}
				}
			},
		})
	})
}
