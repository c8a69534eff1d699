package layout

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestTheLargestVolumeOfEachLayout(t *testing.T) {
	stripes := Layout{Type: Striped, Stripes: 2}
	for _, c := range []struct {
		name               string
		layout             Layout
		free               []int64
		reserve            int64
		largest, available int64
	}{
		{"linear takes all", Layout{}, []int64{5, 0, 7}, 0, 12, 12},
		{"linear leaves the reserve", Layout{}, []int64{5, 7}, 4, 8, 8},
		{"a reserve above all leaves nothing", Layout{}, []int64{5}, 9, 0, 0},
		{"stripes end with the second device", stripes, []int64{5, 9}, 0, 10, 10},
		{"stripes of three devices", stripes, []int64{10, 6, 6}, 0, 12, 22},
		{"stripes with too few devices", stripes, []int64{10}, 0, 0, 0},
		{"stripes with one free device", stripes, []int64{10, 0}, 0, 0, 0},
		{"stripes leave the reserve", stripes, []int64{10, 10}, 3, 16, 16},
		{"mirrors and their bookkeeping", Layout{Type: RAID1, Mirrors: 1}, []int64{10, 10}, 0, 9, 9},
		{"no space beside the bookkeeping", Layout{Type: RAID1, Mirrors: 1}, []int64{1, 10}, 0, 0, 0},
		{"three copies", Layout{Type: RAID1, Mirrors: 2}, []int64{4, 10, 10}, 0, 3, 3},
		{"raid10", Layout{Type: RAID10, Stripes: 2, Mirrors: 1}, []int64{4, 4, 4, 9}, 0, 6, 6},
		{"raid5", Layout{Type: RAID5, Stripes: 2}, []int64{4, 4, 4}, 0, 6, 6},
		{"raid5 leaves the reserve", Layout{Type: RAID5, Stripes: 2}, []int64{4, 4, 4}, 1, 4, 4},
		{"raid6", Layout{Type: RAID6, Stripes: 3}, []int64{4, 5, 6, 7, 8}, 0, 9, 9},
	} {
		if got := c.layout.Largest(c.free, c.reserve); got != c.largest {
			t.Errorf("%s: largest %d, want %d", c.name, got, c.largest)
		}
		if got := c.layout.Available(c.free, c.reserve); got != c.available {
			t.Errorf("%s: available %d, want %d", c.name, got, c.available)
		}
	}
}

func anyLayout(t *rapid.T) Layout {
	switch rapid.SampledFrom([]Type{Linear, Striped, RAID1, RAID10, RAID5, RAID6}).Draw(t, "type") {
	case Linear:
		return Layout{Type: Linear}
	case Striped:
		return Layout{Type: Striped, Stripes: rapid.IntRange(2, 4).Draw(t, "stripes")}
	case RAID1:
		return Layout{Type: RAID1, Mirrors: rapid.IntRange(1, 2).Draw(t, "mirrors")}
	case RAID10:
		return Layout{Type: RAID10, Stripes: 2, Mirrors: 1}
	case RAID5:
		return Layout{Type: RAID5, Stripes: rapid.IntRange(2, 3).Draw(t, "stripes")}
	case RAID6:
		return Layout{Type: RAID6, Stripes: 3}
	}
	return Layout{Type: Linear}
}

// It creates volumes of random layouts until nothing fits, and checks the arithmetic against
// itself: the largest volume can be placed, one unit more cannot, each volume reduces what is
// available by at least its size, and no device is used twice.
func TestWhatIsSaidToFitFitsAndNoMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var free []Free
		for i := range rapid.IntRange(1, 6).Draw(t, "devices") {
			f := Free{Device: string(rune('a' + i))}
			next := int64(0)
			for range rapid.IntRange(0, 3).Draw(t, "runs") {
				r := Run{next + rapid.Int64Range(0, 3).Draw(t, "gap"), rapid.Int64Range(1, 20).Draw(t, "length")}
				f.Runs = append(f.Runs, r)
				next = r.Start + r.Length + 1
			}
			free = append(free, f)
		}
		reserve := rapid.Int64Range(0, 10).Draw(t, "reserve")
		layouts := []Layout{anyLayout(t), anyLayout(t)}
		for range 10 {
			l := rapid.SampledFrom(layouts).Draw(t, "layout")
			before := Counts(free)
			most, available := l.Largest(before, reserve), l.Available(before, reserve)
			if most%l.Unit() != 0 || available%l.Unit() != 0 || available < most || available > max(0, sum(before)-reserve) {
				t.Fatalf("%v of %v but %d: largest %d, available %d", l, before, reserve, most, available)
			}
			if !l.IsLinear() && most > 0 {
				if want := (rowByRow(l, before, reserve) - l.bookkeeping()) * l.Unit(); available != want {
					t.Fatalf("%v of %v but %d: %d available, want %d", l, before, reserve, available, want)
				}
			}
			if reserve == 0 && l.Place(free, most+l.Unit()) != nil {
				t.Fatalf("%v of %v: %d and more can be placed", l, before, most)
			}
			if most == 0 {
				continue
			}
			size := l.RoundUp(rapid.Int64Range(1, most).Draw(t, "size"))
			if rapid.Bool().Draw(t, "the largest") {
				size = most
			}
			shares := l.Place(free, size)
			checkShares(t, l, free, shares, size)
			free = Without(free, shares)
			if got := sum(Counts(free)); got != sum(before)-l.Raw(size) {
				t.Fatalf("%d are left of %v after %d", got, before, size)
			}
			if now := l.Available(Counts(free), reserve); now > available-size {
				t.Fatalf("%v: %d available, then %d after %d", l, available, now, size)
			}
		}
	})
}

// rowByRow counts the rows that fit one after the other, on the freest devices each.
func rowByRow(l Layout, free []int64, reserve int64) (rows int64) {
	left, n := slices.Clone(free), l.Devices()
	for ; len(left) >= n && sum(left)-int64(n) >= reserve; rows++ {
		slices.Sort(left)
		freest := left[len(left)-n:]
		if freest[0] == 0 {
			break
		}
		for i := range freest {
			freest[i]--
		}
	}
	return rows
}

func checkShares(t *rapid.T, l Layout, free []Free, shares []Share, size int64) {
	if shares == nil {
		t.Fatalf("%v: %d are not placed in %v", l, size, free)
	}
	total, seen := int64(0), map[string]bool{}
	for i, s := range shares {
		at := slices.IndexFunc(free, func(f Free) bool { return f.Device == s.Device })
		if at < 0 || seen[s.Device] || s.Extents < 1 || s.Extents > free[at].Extents() {
			t.Fatalf("%v: shares %v of %v", l, shares, free)
		}
		seen[s.Device] = true
		total += s.Extents
		exact := len(s.Runs) > 0 || s.Extents == free[at].Extents() || len(shares) == 1 || !l.IsLinear()
		if !exact {
			t.Fatalf("share %d of %v leaves LVM the choice how much it takes", i, shares)
		}
		var runs int64
		for _, r := range s.Runs {
			runs += r.Length
		}
		if len(s.Runs) > 0 && runs != s.Extents {
			t.Fatalf("share %v", s)
		}
	}
	if total != l.Raw(size) {
		t.Fatalf("%v: %d raw extents for %d, want %d", l, total, size, l.Raw(size))
	}
}

func TestRAIDGrowsOnItsOwnDevices(t *testing.T) {
	free := []Free{{"a", []Run{{0, 5}}}, {"b", []Run{{0, 3}}}, {"c", []Run{{0, 100}}}}
	mirror := Layout{Type: RAID1, Mirrors: 1}
	on := []string{"a", "b"}
	if n := mirror.LargestGrowth(free, on, 0); n != 3 {
		t.Errorf("largest growth %d, want 3", n)
	}
	if mirror.PlaceGrowth(free, on, 4) != nil {
		t.Error("it grows onto another device")
	}
	if got := mirror.PlaceGrowth(free, on, 3); len(got) != 2 || got[0].Device != "a" || got[1].Device != "b" || got[0].Extents != 3 {
		t.Errorf("shares %v", got)
	}
	if n := mirror.LargestGrowth(free, []string{"a", "b", "c"}, 0); n != 0 {
		t.Errorf("two images on three devices grow by %d", n)
	}
	stripes := Layout{Type: Striped, Stripes: 2}
	if n := stripes.LargestGrowth(free, on, 0); n != 10 {
		t.Errorf("stripes grow by %d, want 10 on the two freest", n)
	}
}
