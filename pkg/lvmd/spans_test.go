//go:build !kernel

package lvmd

import (
	"testing"

	"pgregory.net/rapid"
)

func TestASetOfSpansIsTheSetOfItsBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 24
		var s spans
		var bytes [size]bool
		draw := func(t *rapid.T) span {
			from := rapid.Int64Range(0, size).Draw(t, "from")
			return span{from, rapid.Int64Range(from, size).Draw(t, "to")}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				p := draw(t)
				s = s.plus(p)
				for i := p.from; i < p.to; i++ {
					bytes[i] = true
				}
			},
			"cut": func(t *rapid.T) {
				p := draw(t)
				s = s.minus(p)
				for i := p.from; i < p.to; i++ {
					bytes[i] = false
				}
			},
			"": func(t *rapid.T) {
				p, all, n := draw(t), true, int64(0)
				for i, in := range bytes {
					if in {
						n++
					} else if int64(i) >= p.from && int64(i) < p.to {
						all = false
					}
				}
				if s.holds(p) != all || s.size() != n {
					t.Fatalf("%v holds %v: %v, want %v; size %d, want %d", s, p, s.holds(p), all, s.size(), n)
				}
				for i := 1; i < len(s); i++ {
					if s[i-1].to >= s[i].from {
						t.Fatalf("%v is not sorted and apart", s)
					}
				}
			},
		})
	})
}
