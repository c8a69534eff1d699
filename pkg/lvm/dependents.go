package lvm

import (
	"slices"
	"strings"

	"github.com/carve-csi/carve/pkg/devmapper"
	"github.com/carve-csi/carve/pkg/lvm/layout"
)

// Dependent is what needs a logical volume to stay as it is: LVM would remove it together with the
// volume, or what is written to the volume harms it.
type Dependent struct {
	// Name is the logical volume's that depends, or empty where LVM does not show it.
	Name string
	// Is says what it is to the volume, and Remedy what an administrator does to end that.
	Is, Remedy string
}

// dependedOn are the first letters of lv_attr that show that another logical volume depends on the
// one that has it: o and O are origins, of a snapshot with a size of its own or of a thin volume of
// another pool, C has a cache, and t, d and D are pools. An origin whose snapshots are thin volumes
// of its own pool is V as any other: they share its blocks, which the pool counts, and so neither
// a removal of the origin, nor what is written to it or unmapped, changes them.
const dependedOn = "oOCtdD"

// mergingOrigin is the first letter of lv_attr of a volume into which a snapshot is merged.
const mergingOrigin = 'O'

// withoutDependents has a command process those of the volumes that are named on which no other one
// depends. LVM decides when it has the group locked: what was made since a scan counts.
const withoutDependents = `lv_attr!~"^[` + dependedOn + `]"`

// dependentTargets are the kinds of device that the kernel has for such a volume while it is active,
// but for those of pools.
var dependentTargets = []string{"snapshot-origin", "snapshot-merge", "cache", "writecache"}

// Dependents lists what depends on the group's volumes, by the volumes' names.
func (g *Group) Dependents() map[string][]Dependent {
	byName := make(map[string]*Volume, len(g.Volumes))
	for i := range g.Volumes {
		byName[g.Volumes[i].Name] = &g.Volumes[i]
	}
	found := map[string][]Dependent{}
	add := func(of string, d Dependent) { found[of] = append(found[of], d) }
	for _, lv := range g.Volumes {
		path := g.Name + "/" + lv.Name
		if origin := byName[lv.Origin]; origin != nil && (lv.Pool == "" || lv.Pool != origin.Pool) {
			add(lv.Origin, Dependent{lv.Name, "is a snapshot of it", "lvs --all " + g.Name + ", copy what is needed, lvremove " + path})
		}
		if of, _, ok := strings.Cut(lv.Name, "_rimage_"); ok && byName[of] != nil && !byName[of].Attr.SkipActivation {
			add(of, Dependent{lv.Name, "is an image that was split off it", "lvconvert --merge " + path})
		}
	}
	for _, lv := range g.Volumes {
		if strings.IndexByte(dependedOn, lv.Attr.Type) >= 0 && len(found[lv.Name]) == 0 {
			add(lv.Name, g.unnamed(&lv))
		}
	}
	return found
}

// unnamed is what only lv_attr shows to depend on a volume.
func (g *Group) unnamed(lv *Volume) Dependent {
	path := g.Name + "/" + lv.Name
	switch lv.Attr.Type {
	case 'C':
		cache := strings.Trim(lv.Pool, "[]")
		for _, suffix := range []string{"_cpool", "_cvol"} {
			cache = strings.TrimSuffix(cache, suffix)
		}
		return Dependent{cache, "is its cache", "lvconvert --splitcache " + path}
	case mergingOrigin:
		return Dependent{lv.Merging, "is merged into it", "wait; a merge that waits begins with lvchange --refresh " + path}
	case 'o':
		return Dependent{"", "is a snapshot of it", "lvs --all " + g.Name + ", copy what is needed, lvremove"}
	default:
		return Dependent{"", "lies in it, as it was made a pool", "lvs --all " + g.Name + ", copy what is needed, lvremove"}
	}
}

// HasDependents implements Groups.
func (i inspection) HasDependents(group, volume string) (bool, error) {
	targets, err := dmTable(layout.DeviceName(group, volume))
	return slices.ContainsFunc(targets, func(t devmapper.Target) bool { return slices.Contains(dependentTargets, t.Kind) }), err
}
