package lvmfake

import (
	"fmt"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// Limit implements lvm.Groups. One accepted device shows the whole group.
func (f metadata) Limit(accepts func(*blockdev.Device) bool) {
	defer f.lock()()
	f.accepts = accepts
}

func (f metadata) Pin(name string, identity lvm.Identity) {
	defer f.lock()()
	f.pins[name] = identity
}

// Restart forgets the pins, as a restart of the user's process does.
func (f metadata) Restart() {
	defer f.lock()()
	clear(f.pins)
}

// Others implements lvm.Groups. The fake has at most one group of a name.
func (f metadata) Others(name string) []lvm.Other {
	defer f.lock()()
	if g := f.groups[name]; g != nil && f.sees(name, g) && !f.takes(name, g) {
		other := lvm.Other{UUID: g.uuid, Foreign: g.foreign}
		for _, d := range g.devices(name) {
			other.Paths = append(other.Paths, d.path)
		}
		if g.copied != "" {
			other.Paths = append(other.Paths, g.copied)
			other.Duplicates = []lvm.Duplicate{{UUID: g.devices(name)[0].uuid, Paths: other.Paths}}
		}
		return []lvm.Other{other}
	}
	return nil
}

func (f metadata) Duplicated() (groups []string, err error) {
	defer f.lock()()
	for name, g := range f.groups {
		if g.copied != "" {
			groups = append(groups, name)
		}
	}
	return groups, nil
}

func (f metadata) Excluded() (excluded []lvm.Excluded) {
	defer f.lock()()
	for _, d := range f.disks {
		if d.UserData != "" {
			excluded = append(excluded, lvm.Excluded{Path: d.Path, Reason: d.UserData, Imitates: d.imitates})
		}
	}
	return excluded
}

func (f metadata) Metadata(name string) (ondisk.Metadata, error) {
	defer f.lock()()
	g := f.groups[name]
	if g == nil || g.missing || g.foreign == "" && !f.takes(name, g) {
		return ondisk.Metadata{}, fmt.Errorf("volume group %q: %w", name, lvm.ErrNotFound)
	}
	return ondisk.Metadata{Seqno: g.seqno, Size: g.text(), Limit: g.metadataLimit}, nil
}

func (f metadata) BlockDevices() ([]blockdev.Device, error) {
	defer f.lock()()
	var all []blockdev.Device
	for _, d := range f.disks {
		if !d.unplugged && f.accepted(&d.Device) {
			all = append(all, d.Device)
		}
	}
	return all, nil
}

func (f metadata) Label(device string) (ondisk.Label, error) {
	defer f.lock()()
	d, err := f.plugged(device)
	switch {
	case err != nil:
		return ondisk.Label{}, err
	case d.UserData != "":
		return ondisk.Label{}, fmt.Errorf("%s: %w: %s", device, lvm.ErrUserData, d.UserData)
	case d.contents.Label == nil:
		return ondisk.Label{}, fmt.Errorf("%s: %w: not a physical volume", device, lvm.ErrNotFound)
	}
	l := *d.contents.Label
	l.Size = d.Size
	return l, nil
}

func (f metadata) Placement(name string) (ondisk.Placement, error) {
	defer f.lock()()
	g := f.groups[name]
	if g == nil || g.missing {
		return ondisk.Placement{}, fmt.Errorf("volume group %q: %w", name, lvm.ErrNotFound)
	}
	p := ondisk.Placement{Seqno: g.seqno, Free: map[string][]layout.Run{}, Volumes: map[string]ondisk.Volume{}}
	for _, d := range g.devices(name) {
		p.Free[d.uuid] = g.runs(d)
	}
	for vn, v := range g.volumes {
		p.Volumes[vn] = ondisk.Volume{Layout: v.layout(), On: g.on(name, v), Size: g.size(v)}
		if v.pool != nil {
			meta := &volume{extents: v.pool.metadata, shape: v.pool.metadataShape}
			p.Volumes[vn+"_tdata"] = p.Volumes[vn]
			p.Volumes[vn+"_tmeta"] = ondisk.Volume{Layout: meta.layout(), On: g.on(name, meta), Size: int64(len(meta.extents)) * g.extentSize}
		}
	}
	return p, nil
}
