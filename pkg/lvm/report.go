package lvm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carve-csi/carve/pkg/lvm/layout"
)

var reportFields = []struct{ section, fields string }{
	{"vg", "vg_name,vg_uuid,vg_seqno,vg_extent_size,vg_extent_count,vg_free_count,vg_missing_pv_count,vg_exported,vg_permissions,vg_allocation_policy,max_lv,vg_systemid,vg_lock_type"},
	{"pv", "pv_name,pv_uuid,pv_missing,pv_allocatable,pv_pe_count,pv_pe_alloc_count,pe_start"},
	{"lv", "lv_name,lv_uuid,lv_size,seg_count,lv_tags,lv_time,lv_attr,pool_lv,origin,lv_metadata_size,sync_percent,raid_mismatch_count"},
	{"pvseg", "pv_uuid,pvseg_start,pvseg_size,lv_uuid,lv_parent"},
	{"seg", "lv_uuid,seg_start_pe,segtype,stripes,stripe_size"},
}

// fullReport keeps the groups undecoded, so that a malformed one does not make the others
// unreadable.
type fullReport struct {
	Report []json.RawMessage `json:"report"`
}

type reportedGroup struct {
	VG []struct {
		Name         string `json:"vg_name"`
		UUID         string `json:"vg_uuid"`
		Seqno        number `json:"vg_seqno"`
		ExtentSize   number `json:"vg_extent_size"`
		ExtentCount  number `json:"vg_extent_count"`
		FreeCount    number `json:"vg_free_count"`
		MissingCount number `json:"vg_missing_pv_count"`
		Exported     string `json:"vg_exported"`
		Permissions  string `json:"vg_permissions"`
		Allocation   string `json:"vg_allocation_policy"`
		MostVolumes  number `json:"max_lv"`
		SystemID     string `json:"vg_systemid"`
		LockType     string `json:"vg_lock_type"`
	} `json:"vg"`
	PV []struct {
		Name        string `json:"pv_name"`
		UUID        string `json:"pv_uuid"`
		Missing     string `json:"pv_missing"`
		Allocatable string `json:"pv_allocatable"`
		PECount     number `json:"pv_pe_count"`
		PEAlloc     number `json:"pv_pe_alloc_count"`
		PEStart     number `json:"pe_start"`
	} `json:"pv"`
	LV []struct {
		Name string `json:"lv_name"`
		UUID string `json:"lv_uuid"`
		Size number `json:"lv_size"`
		Segs number `json:"seg_count"`
		Tags string `json:"lv_tags"`
		Time string `json:"lv_time"`
		Attr string `json:"lv_attr"`
		// Of thin volumes and pools.
		Pool         string `json:"pool_lv"`
		Origin       string `json:"origin"`
		MetadataSize number `json:"lv_metadata_size"`
		// Of RAID volumes.
		Synced     string `json:"sync_percent"`
		Mismatches number `json:"raid_mismatch_count"`
	} `json:"lv"`
	PVSeg []reportedRun     `json:"pvseg"`
	Seg   []reportedSegment `json:"seg"`
}

// reportedRun belongs to a volume or a component, or is free.
type reportedRun struct {
	PV     string `json:"pv_uuid"`
	Start  number `json:"pvseg_start"`
	Size   number `json:"pvseg_size"`
	LV     string `json:"lv_uuid"`
	Parent string `json:"lv_parent"`
}

type reportedSegment struct {
	LV         string `json:"lv_uuid"`
	Start      number `json:"seg_start_pe"`
	Type       string `json:"segtype"`
	Stripes    number `json:"stripes"`
	StripeSize number `json:"stripe_size"`
}

type number int64

func (n *number) UnmarshalJSON(b []byte) error {
	s := strings.Trim(string(b), `"`)
	if s == "" {
		*n = 0
		return nil
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return fmt.Errorf("not an integer: %q", s)
	}
	*n = number(v)
	return nil
}

// reportTime is the layout of lv_time in the C locale, in any time zone.
const reportTime = "2006-01-02 15:04:05 -0700"

// pins maps groups to their UUIDs; an empty one is unknown.
type pins map[string]string

// parseFullReport reads the groups of these names from the JSON of fullreport. It ignores other
// groups, even malformed ones.
func parseFullReport(b []byte, pins pins) ([]Group, error) {
	var r fullReport
	if err := json.Unmarshal(withoutMessages(b), &r); err != nil {
		return nil, fmt.Errorf("fullreport: %w", err)
	}
	var groups []Group
	for _, section := range r.Report {
		var of reportedGroup
		err := json.Unmarshal(section, &of)
		if len(of.VG) != 1 {
			continue
		}
		vg := of.VG[0]
		uuid, isWanted := pins[vg.Name]
		isOther := uuid != "" && uuid != vg.UUID
		if !isWanted || isOther && (err != nil || vg.ExtentSize <= 0) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("fullreport: volume group %q: %w", vg.Name, err)
		}
		if vg.ExtentSize <= 0 {
			return nil, fmt.Errorf("fullreport: volume group %q: extent size %d", vg.Name, vg.ExtentSize)
		}
		g := Group{
			Name: vg.Name, UUID: vg.UUID, Seqno: uint64(vg.Seqno),
			ExtentSize: int64(vg.ExtentSize), Extents: int64(vg.ExtentCount), FreeExtents: int64(vg.FreeCount),
			MissingDevices: int(vg.MissingCount),
			Access:         Access{Exported: vg.Exported != "", ReadOnly: vg.Permissions != "writeable"},
			MostVolumes:    int64(vg.MostVolumes), Allocation: vg.Allocation,
		}
		switch {
		case vg.SystemID != "": // Our commands have no system ID.
			g.Foreign = fmt.Sprintf("the system ID %q (vgchange --systemid)", vg.SystemID)
		case vg.LockType != "" && vg.LockType != "none":
			g.Foreign = fmt.Sprintf("the lock type %s (vgchange --lock-type)", vg.LockType)
		}
		for _, pv := range of.PV {
			g.Devices = append(g.Devices, PhysicalVolume{
				Path: pv.Name, UUID: pv.UUID, Missing: pv.Missing != "", Allocatable: pv.Allocatable != "",
				Extents: int64(pv.PECount), AllocatedExtents: int64(pv.PEAlloc), DataOffset: int64(pv.PEStart),
				Free: freeRuns(of.PVSeg, pv.UUID),
			})
			g.FreeSegments += int64(len(g.Devices[len(g.Devices)-1].Free))
		}
		places := placesOf(of.PVSeg)
		layouts := layoutsOf(of.Seg)
		for _, lv := range of.LV {
			v := Volume{Name: lv.Name, UUID: lv.UUID, Size: int64(lv.Size), Segments: int64(lv.Segs)}
			if lv.Tags != "" {
				v.Tags = strings.Split(lv.Tags, ",")
			}
			v.Pool, v.Origin, v.MetadataSize = lv.Pool, lv.Origin, int64(lv.MetadataSize)
			v.Layout, v.On, v.Mismatches = layouts[lv.UUID], places.of(lv.Name, lv.UUID), int64(lv.Mismatches)
			// Values that cannot be parsed stay unknown, so that one volume does not affect the
			// others. Volumes from before LVM 2.02.89 have no time.
			v.Attr, _ = ParseAttr(lv.Attr)
			v.Created, _ = time.Parse(reportTime, lv.Time)
			var err error
			if v.Synced, err = parsePercent(lv.Synced); err != nil {
				v.Attr.Health = UnknownHealth
			}
			g.Volumes = append(g.Volumes, v)
		}
		groups = append(groups, g)
	}
	return groups, nil
}

// withoutMessages drops the lines that are not JSON: LVM writes some messages about damaged
// disks to standard output. Its JSON has a line for each row.
func withoutMessages(b []byte) []byte {
	var kept []byte
	for line := range bytes.Lines(b) {
		if text := bytes.TrimSpace(line); len(text) > 0 && bytes.IndexByte([]byte("{}[],\""), text[0]) >= 0 {
			kept = append(kept, line...)
		}
	}
	return kept
}

func freeRuns(runs []reportedRun, pv string) []layout.Run {
	var free []layout.Run
	for _, r := range runs {
		if r.PV == pv && r.LV == "" && r.Size > 0 {
			free = append(free, layout.Run{Start: int64(r.Start), Length: int64(r.Size)})
		}
	}
	slices.SortFunc(free, func(a, b layout.Run) int { return int(min(1, max(-1, a.Start-b.Start))) })
	return free
}

// places lists devices by a volume's UUID, or for components by their volume's name.
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

func layoutsOf(segments []reportedSegment) map[string]layout.Layout {
	layouts, last := map[string]layout.Layout{}, map[string]number{}
	for _, s := range segments {
		if s.Start < last[s.LV] {
			continue
		}
		last[s.LV] = s.Start
		layouts[s.LV] = layout.Of(s.Type, int(s.Stripes), int64(s.StripeSize))
	}
	return layouts
}

// parsePercent reads LVM's percentages, "12.34", as hundredths. An empty one means all.
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
