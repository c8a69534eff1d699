package zeroed

import "github.com/carve-csi/carve/pkg/lvm"

// Map is the space of a volume group that lvmd wiped and did not allocate since: a set of bytes for
// each physical volume, by UUID. Other free space may hold anything, from an earlier owner of the
// disk or a volume that an administrator removed.
//
// It is valid for one sequence number of the group's metadata. After a change that is not accounted
// for, the caller replaces it with an empty one. Thus a lost record costs an unnecessary wipe, and
// never omits a necessary one.
//
// It is not safe for concurrent use.
type Map map[string]Set

// Allocate removes a volume's segments. It returns the stretches of the volume, from the byte from
// on, that may not hold zeroes.
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

// Free adds wiped, freed segments, except those whose devices hold other bytes than the volume,
// such as parity.
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

// Holds reports whether the whole segment holds zeroes.
func (c Map) Holds(p lvm.Segment) bool {
	for _, a := range p.Areas {
		if !c[a.Device].holds(Span{a.Start, a.Start + a.Length}) {
			return false
		}
	}
	return true
}

// Size is in bytes.
func (c Map) Size() int64 {
	var n int64
	for _, s := range c {
		n += s.size()
	}
	return n
}

// Edges returns alternate starts and ends of stretches, by device.
func (c Map) Edges() map[string][]int64 {
	edges := map[string][]int64{}
	for device, s := range c {
		for _, e := range s {
			edges[device] = append(edges[device], e.From, e.To)
		}
	}
	return edges
}

// Add reverses Edges.
func (c Map) Add(edges map[string][]int64) {
	for device, e := range edges {
		for ; len(e) >= 2; e = e[2:] {
			c[device] = c[device].Plus(Span{e[0], e[1]})
		}
	}
}
