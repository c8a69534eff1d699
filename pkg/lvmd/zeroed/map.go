package zeroed

import "github.com/carve-csi/carve/pkg/lvm"

// Map is the space of a volume group that is known to hold zeroes because lvmd wiped
// it, and because nothing has been given it since: of each physical volume, by UUID, a set
// of bytes. What is free but not in it may hold anything: what an earlier owner of the disk
// left, or a volume that an administrator removed by hand.
//
// It is true of one sequence number of the group's metadata. After a change that is not
// accounted for, the caller replaces it with an empty one. So whatever is missed, or lost
// with the journal, costs a wipe too many and never one too few.
//
// It is not safe for concurrent use.
type Map map[string]Set

// Allocate removes what a volume was given, and returns the stretches of the volume, from the
// byte from on, that are not known to hold zeroes.
func (c Map) Allocate(pieces []lvm.Segment, from int64) Set {
	var notZeroed Set
	for _, p := range pieces {
		if p.Offset+p.Length > from && !c.Holds(p) {
			notZeroed = notZeroed.Plus(Span{max(from, p.Offset), p.Offset + p.Length})
		}
	}
	for _, p := range pieces {
		for _, a := range p.Areas {
			c[a.Device] = c[a.Device].Minus(Span{a.Start, a.Start + a.Length})
		}
	}
	return notZeroed
}

// Free adds what was wiped and is free now. Where a device does not hold the volume's very
// bytes, as that of parity does not, nothing is added.
func (c Map) Free(pieces []lvm.Segment) {
	for _, p := range pieces {
		if !p.Exact {
			continue
		}
		for _, a := range p.Areas {
			c[a.Device] = c[a.Device].Plus(Span{a.Start, a.Start + a.Length})
		}
	}
}

// Holds reports whether all that a piece lies on is known to hold zeroes.
func (c Map) Holds(p lvm.Segment) bool {
	for _, a := range p.Areas {
		if !c[a.Device].holds(Span{a.Start, a.Start + a.Length}) {
			return false
		}
	}
	return true
}

// Size counts the bytes.
func (c Map) Size() int64 {
	var n int64
	for _, s := range c {
		n += s.size()
	}
	return n
}

// Edges returns, for each device, the starts and ends of its stretches alternately.
func (c Map) Edges() map[string][]int64 {
	edges := map[string][]int64{}
	for device, s := range c {
		for _, e := range s {
			edges[device] = append(edges[device], e.From, e.To)
		}
	}
	return edges
}

// Add adds stretches as edges returned them.
func (c Map) Add(edges map[string][]int64) {
	for device, e := range edges {
		for ; len(e) >= 2; e = e[2:] {
			c[device] = c[device].Plus(Span{e[0], e[1]})
		}
	}
}
