package ondisk

import (
	"fmt"
	"slices"
	"strings"

	"github.com/carve-csi/carve/pkg/lvm/layout"
)

// Placement describes where a group's volumes lie.
type Placement struct {
	Seqno uint64
	// Free lists the free extents of each device in order, by UUID. A full device may be
	// absent.
	Free map[string][]layout.Run
	// Volumes includes hidden ones.
	Volumes map[string]Volume
}

// Volume describes how and where a volume lies.
type Volume struct {
	// Layout is that of the last segment, in which the volume grows.
	Layout layout.Layout
	// On lists the sorted UUIDs of the volume's devices, bookkeeping included.
	On []string
	// Size is in bytes.
	Size int64
}

// ParsePlacement parses a group's metadata text.
func ParsePlacement(text []byte) (Placement, error) {
	vg, err := parseGroup(text)
	if err != nil {
		return Placement{}, err
	}
	r := placementReader{uuids: map[string]string{}, used: map[string][]layout.Run{}, on: map[string][]string{}}
	p := Placement{
		Seqno: uint64(r.number(vg, "seqno")), Free: map[string][]layout.Run{}, Volumes: map[string]Volume{},
	}
	sizes := map[string]int64{}
	for name, v := range r.sections(vg, "physical_volumes") {
		r.uuids[name] = r.text(v, "id")
		sizes[name] = r.number(v, "pe_count")
	}
	volumes := r.sections(vg, "logical_volumes")
	extentSize := r.number(vg, "extent_size") * sectorSize
	for name := range volumes {
		p.Volumes[name] = Volume{Layout: r.layout(volumes[name]), On: r.devices(volumes, name, 0), Size: r.extents(volumes[name]) * extentSize}
	}
	for name, size := range sizes {
		free, ok := complement(r.used[name], size)
		if !ok {
			r.fail("what is allocated on device %q overlaps, or is more than its %d extents", name, size)
		}
		p.Free[r.uuids[name]] = free
	}
	return p, r.err
}

type placementReader struct {
	// uuids and used, the allocated extents, are by the devices' names in the text.
	uuids map[string]string
	used  map[string][]layout.Run
	// on caches the results of devices.
	on  map[string][]string
	err error
}

func (r *placementReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("metadata: "+format, args...)
	}
}

func (r *placementReader) number(s section, key string) int64 {
	n, ok := s[key].(int64)
	if !ok || n < 0 {
		r.fail("%s is %v", key, s[key])
	}
	return n
}

func (r *placementReader) text(s section, key string) string {
	t, ok := s[key].(string)
	if !ok {
		r.fail("%s is %v", key, s[key])
	}
	return t
}

// sections accepts an absent key.
func (r *placementReader) sections(s section, key string) map[string]section {
	all := map[string]section{}
	within, ok := s[key].(section)
	if !ok && s[key] != nil {
		r.fail("%s is no section", key)
	}
	for name, v := range within {
		if sub, ok := v.(section); ok {
			all[name] = sub
		}
	}
	return all
}

func (r *placementReader) segments(volume section) []section {
	n := r.number(volume, "segment_count")
	var all []section
	for i := int64(1); i <= n && r.err == nil; i++ {
		s, ok := volume[fmt.Sprintf("segment%d", i)].(section)
		if !ok {
			r.fail("segment %d of %d is missing", i, n)
			break
		}
		all = append(all, s)
	}
	return all
}

func (r *placementReader) extents(volume section) int64 {
	var n int64
	for _, s := range r.segments(volume) {
		n += r.number(s, "extent_count")
	}
	return n
}

func (r *placementReader) layout(volume section) layout.Layout {
	segments := r.segments(volume)
	if len(segments) == 0 {
		return layout.Layout{}
	}
	s := segments[len(segments)-1]
	devices, _ := s["stripe_count"].(int64)
	if n, ok := s["device_count"].(int64); ok {
		devices = n
	}
	sectors, _ := s["stripe_size"].(int64)
	return layout.Of(r.text(s, "type"), int(devices), sectors*sectorSize)
}

// devices returns the devices below a volume and records the extents that it uses there. depth
// guards against cycles.
func (r *placementReader) devices(volumes map[string]section, volume string, depth int) []string {
	if on, done := r.on[volume]; done || depth > maxTextDepth {
		return on
	}
	r.on[volume] = nil
	var on []string
	for _, s := range r.segments(volumes[volume]) {
		for _, key := range []string{"stripes", "raids", "raid0_lvs", "mirrors"} {
			list, _ := s[key].([]any)
			for i, v := range list {
				name, ok := v.(string)
				if !ok {
					continue // the position in it, see allocate
				}
				if uuid, ok := r.uuids[name]; ok {
					on = append(on, uuid)
					r.allocate(s, name, list, i)
				} else if volumes[name] != nil {
					on = append(on, r.devices(volumes, name, depth+1)...)
				} else {
					r.fail("volume %q lies on %q, which the text does not describe", volume, name)
				}
			}
		}
	}
	slices.Sort(on)
	on = slices.Compact(on)
	r.on[volume] = on
	return on
}

// allocate records extents of a segment: in the list, the first extent follows the device.
func (r *placementReader) allocate(segment section, device string, list []any, i int) {
	length, areas := r.number(segment, "extent_count"), int64(len(list)/2)
	if strings.HasPrefix(r.text(segment, "type"), "mirror") {
		areas = 1 // Every leg is as long as the whole.
	}
	if i+1 >= len(list) || areas == 0 {
		r.fail("a segment's list of devices is cut short")
		return
	}
	start, ok := list[i+1].(int64)
	if !ok || start < 0 {
		r.fail("a segment begins at %v", list[i+1])
		return
	}
	r.used[device] = append(r.used[device], layout.Run{Start: start, Length: length / areas})
}

// complement returns the unused ones of size extents. ok is false if the used ranges do not fit
// or overlap.
func complement(used []layout.Run, size int64) (free []layout.Run, ok bool) {
	slices.SortFunc(used, func(a, b layout.Run) int { return int(min(1, max(-1, a.Start-b.Start))) })
	next := int64(0)
	for _, u := range used {
		if u.Start < next || u.Length < 1 || u.Length > size-u.Start {
			return nil, false
		}
		if u.Start > next {
			free = append(free, layout.Run{Start: next, Length: u.Start - next})
		}
		next = u.Start + u.Length
	}
	if next < size {
		free = append(free, layout.Run{Start: next, Length: size - next})
	}
	return free, true
}
