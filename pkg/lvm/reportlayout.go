package lvm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// freeRuns are a device's free extents, in order.
func freeRuns(runs []reportedRun, pv string) []Run {
	var free []Run
	for _, r := range runs {
		if r.PV == pv && r.LV == "" && r.Size > 0 {
			free = append(free, Run{Start: int64(r.Start), Length: int64(r.Size)})
		}
	}
	slices.SortFunc(free, func(a, b Run) int { return int(min(1, max(-1, a.Start-b.Start))) })
	return free
}

// places are the devices of volumes, by UUID and, of hidden ones, by the name
// of the volume that they are part of.
type places struct{ byUUID, byParent map[string][]string }

func placesOf(runs []reportedRun) places {
	p := places{map[string][]string{}, map[string][]string{}}
	for _, r := range runs {
		switch {
		case r.LV == "":
		case r.Parent != "":
			p.byParent[r.Parent] = append(p.byParent[r.Parent], r.PV)
		default:
			p.byUUID[r.LV] = append(p.byUUID[r.LV], r.PV)
		}
	}
	return p
}

func (p places) of(name, uuid string) []string {
	on := slices.Concat(p.byUUID[uuid], p.byParent[name])
	slices.Sort(on)
	return slices.Compact(on)
}

// layoutsOf are the layouts of the volumes' last segments, by UUID.
func layoutsOf(segments []reportedSegment) map[string]Layout {
	layouts, last := map[string]Layout{}, map[string]number{}
	for _, s := range segments {
		if s.Start < last[s.LV] {
			continue
		}
		last[s.LV] = s.Start
		layouts[s.LV] = layoutOf(s.Type, int(s.Stripes), int64(s.StripeSize))
	}
	return layouts
}

// parsePercent reads LVM's percentages, "12.34", as hundredths; an empty one,
// of what has none, is all.
func parsePercent(s string) (int64, error) {
	const all = 10000
	if s == "" || s == "-1" {
		return all, nil
	}
	whole, fraction, _ := strings.Cut(s, ".")
	n, err := strconv.ParseInt(whole+(fraction + "00")[:2], 10, 64)
	if err != nil || n < 0 || n > all {
		return 0, fmt.Errorf("%q is no percentage", s)
	}
	return n, nil
}
