package layout

import "slices"

// Free describes the allocatable extents of one device.
type Free struct {
	// Device is its PhysicalVolume.Path.
	Device string
	// Runs are sorted and do not touch.
	Runs []Run
}

// Run is a contiguous range of extents.
type Run struct{ Start, Length int64 }

// Extents counts a device's free extents.
func (f Free) Extents() int64 {
	var n int64
	for _, r := range f.Runs {
		n += r.Length
	}
	return n
}

// Share describes the extents that a volume takes of one device.
type Share struct {
	Device string
	// Extents includes bookkeeping.
	Extents int64
	// Runs, unless empty, are the exact extents, and sum up to Extents.
	Runs []Run
}

// Largest returns the size in extents of the largest volume, with the given extents free on
// each device and reserve of them kept free. It is exact: a multiple of the unit, and 0 if
// nothing fits.
func (l Layout) Largest(free []int64, reserve int64) int64 {
	return l.largest(free, reserve, l.bookkeeping())
}

func (l Layout) largest(free []int64, reserve, bookkeeping int64) int64 {
	most := max(0, sum(free)-reserve)
	if l.IsLinear() {
		return most
	}
	n := l.Devices()
	if n < 1 || len(free) < n {
		return 0
	}
	sorted := slices.Clone(free)
	slices.SortFunc(sorted, func(a, b int64) int { return int(min(1, max(-1, b-a))) })
	rows := min(sorted[n-1], most/int64(n)) - bookkeeping
	return max(0, rows) * l.Unit()
}

// Available returns the size in extents of all possible new volumes together: no sequence of
// them exceeds it. A single volume may be smaller, see Largest, as it needs all its devices at
// once. Each RAID volume after the first also takes its bookkeeping from it.
func (l Layout) Available(free []int64, reserve int64) int64 {
	if l.IsLinear() || l.Largest(free, reserve) == 0 {
		return l.Largest(free, reserve)
	}
	n := int64(l.Devices())
	// Rows can be laid out one by one, each on the freest devices, while none needs a device
	// twice. Search for the most such rows.
	low, high := int64(0), (sum(free)-reserve)/n
	for low < high {
		rows := low + (high-low+1)/2
		var usable int64
		for _, f := range free {
			usable += min(f, rows)
		}
		if usable >= n*rows {
			low = rows
		} else {
			high = rows - 1
		}
	}
	return (low - l.bookkeeping()) * l.Unit()
}

// Place chooses the devices with the most free extents for a volume. It returns nil if too few
// are free, or if extents is not a multiple of the unit.
func (l Layout) Place(free []Free, extents int64) []Share {
	return l.place(free, extents, l.bookkeeping())
}

func (l Layout) place(free []Free, extents, bookkeeping int64) []Share {
	if extents < 1 || extents%l.Unit() != 0 {
		return nil
	}
	sorted := slices.Clone(free)
	slices.SortStableFunc(sorted, func(a, b Free) int { return int(min(1, max(-1, b.Extents()-a.Extents()))) })
	if l.IsLinear() {
		return placeLinear(sorted, extents)
	}
	n, rows := l.Devices(), extents/l.Unit()+bookkeeping
	if n < 1 || len(sorted) < n || sorted[n-1].Extents() < rows {
		return nil
	}
	shares := make([]Share, n)
	for i := range shares {
		shares[i] = Share{Device: sorted[i].Device, Extents: rows}
	}
	return shares
}

// placeLinear takes whole devices until the last. For that one, unless it is the only one, it
// names the extents: otherwise LVM would choose how much to take of each.
func placeLinear(sorted []Free, extents int64) []Share {
	var shares []Share
	for _, f := range sorted {
		n := f.Extents()
		switch {
		case n == 0:
			continue
		case n < extents:
			shares = append(shares, Share{Device: f.Device, Extents: n})
			extents -= n
			continue
		}
		last := Share{Device: f.Device, Extents: extents}
		if len(shares) > 0 && n > extents {
			last.Runs = firstOf(f.Runs, extents)
		}
		return append(shares, last)
	}
	return nil
}

// firstOf takes the largest runs, and so few.
func firstOf(runs []Run, n int64) []Run {
	sorted := slices.Clone(runs)
	slices.SortStableFunc(sorted, func(a, b Run) int { return int(min(1, max(-1, b.Length-a.Length))) })
	var taken []Run
	for _, r := range sorted {
		if n == 0 {
			break
		}
		r.Length = min(r.Length, n)
		n -= r.Length
		taken = append(taken, r)
	}
	return taken
}

// LargestGrowth is Largest for the growth of a volume on the given devices. A RAID volume grows
// on its own devices, and only if each image has one to itself.
func (l Layout) LargestGrowth(free []Free, on []string, reserve int64) int64 {
	counts := Counts(free)
	if !l.IsRAID() {
		return l.largest(counts, reserve, 0)
	}
	own := l.own(free, on)
	if own == nil {
		return 0
	}
	rows := max(0, sum(counts)-reserve) / int64(len(own))
	for _, f := range own {
		rows = min(rows, f.Extents())
	}
	return rows * l.Unit()
}

// PlaceGrowth is Place for the growth of a volume.
func (l Layout) PlaceGrowth(free []Free, on []string, more int64) []Share {
	if l.IsRAID() {
		if free = l.own(free, on); free == nil {
			return nil
		}
	}
	return l.place(free, more, 0)
}

// PlaceGrowthExactly is PlaceGrowth with every extent named. ends maps devices to the volume's
// end there: it first takes the free extents from there on, for few segments.
func (l Layout) PlaceGrowthExactly(free []Free, on []string, more int64, ends map[string]int64) []Share {
	var shares []Share
	if l.IsLinear() {
		for device, end := range ends {
			i := slices.IndexFunc(free, func(f Free) bool { return f.Device == device })
			if i < 0 {
				continue
			}
			if r := runFrom(free[i].Runs, end, more); r.Length > 0 {
				shares = append(shares, Share{Device: device, Extents: r.Length, Runs: []Run{r}})
				more -= r.Length
			}
		}
		free = Without(free, shares)
		if more == 0 {
			return shares
		}
	}
	rest := l.PlaceGrowth(free, on, more)
	if rest == nil {
		return nil
	}
	for _, s := range rest {
		runs := free[slices.IndexFunc(free, func(f Free) bool { return f.Device == s.Device })].Runs
		if end, ok := ends[s.Device]; ok {
			if r := runFrom(runs, end, s.Extents); r.Length > 0 {
				shares = Join(shares, Share{Device: s.Device, Extents: r.Length, Runs: []Run{r}})
				runs, s.Extents = cut(runs, r), s.Extents-r.Length
			}
		}
		if s.Runs = firstOf(runs, s.Extents); s.Extents > 0 {
			shares = Join(shares, s)
		}
	}
	return shares
}

func runFrom(runs []Run, start, most int64) Run {
	for _, r := range runs {
		if r.Start == start {
			return Run{start, min(r.Length, most)}
		}
	}
	return Run{}
}

// Join merges a share with named runs into that of its device.
func Join(shares []Share, s Share) []Share {
	i := slices.IndexFunc(shares, func(o Share) bool { return o.Device == s.Device })
	if i < 0 {
		return append(shares, s)
	}
	shares[i].Extents += s.Extents
	shares[i].Runs = slices.Concat(shares[i].Runs, s.Runs)
	return shares
}

// own returns the devices of a RAID volume, or nil unless each image has its own.
func (l Layout) own(free []Free, on []string) []Free {
	var own []Free
	for _, f := range free {
		if slices.Contains(on, f.Device) {
			own = append(own, f)
		}
	}
	if len(own) != l.Devices() || len(on) != l.Devices() {
		return nil
	}
	return own
}

// Counts returns the free extents of each device.
func Counts(free []Free) []int64 {
	counts := make([]int64, len(free))
	for i, f := range free {
		counts[i] = f.Extents()
	}
	return counts
}

// Without returns the free extents that the shares leave. A share without runs takes the first
// ones.
func Without(free []Free, shares []Share) []Free {
	left := slices.Clone(free)
	for _, s := range shares {
		i := slices.IndexFunc(left, func(f Free) bool { return f.Device == s.Device })
		if i < 0 {
			continue
		}
		if len(s.Runs) == 0 {
			left[i].Runs = after(left[i].Runs, s.Extents)
			continue
		}
		for _, r := range s.Runs {
			left[i].Runs = cut(left[i].Runs, r)
		}
	}
	return left
}

func after(runs []Run, n int64) []Run {
	var left []Run
	for _, r := range runs {
		drop := min(n, r.Length)
		n -= drop
		if r.Length > drop {
			left = append(left, Run{r.Start + drop, r.Length - drop})
		}
	}
	return left
}

func cut(runs []Run, gone Run) []Run {
	var left []Run
	for _, r := range runs {
		if before := min(r.Start+r.Length, gone.Start) - r.Start; before > 0 {
			left = append(left, Run{r.Start, before})
		}
		from := max(r.Start, gone.Start+gone.Length)
		if behind := r.Start + r.Length - from; behind > 0 {
			left = append(left, Run{from, behind})
		}
	}
	return left
}

func sum(counts []int64) int64 {
	var n int64
	for _, c := range counts {
		n += c
	}
	return n
}
