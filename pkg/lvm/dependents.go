package lvm

import (
	"slices"
	"strings"

	"github.com/carve-csi/carve/pkg/devmapper"
	"github.com/carve-csi/carve/pkg/lvm/layout"
)

// Dependent is a reason to leave a logical volume alone: LVM would remove it together with the
// volume, or writes to the volume would harm it.
type Dependent struct {
	// Name is empty if LVM does not show the volume.
	Name string
	// Is describes the dependency, Remedy how an administrator ends it.
	Is, Remedy string
}

// dependedOn lists the first letters of lv_attr of volumes on which others depend: o and O are
// origins of a snapshot with a size of its own or of a thin volume in another pool, C has a
// cache, and t, d and D are pools. An origin of thin snapshots in its own pool shows V like any
// other thin volume: the pool counts shared blocks, so removing, writing or unmapping the
// origin does not change its snapshots.
const dependedOn = "oOCtdD"

// mergingOrigin is the first letter of lv_attr while a snapshot merges into the volume.
const mergingOrigin = 'O'

// withoutDependents selects the volumes without dependents. LVM evaluates it under its lock of
// the group, so it sees dependents that a scan missed.
const withoutDependents = `lv_attr!~"^[` + dependedOn + `]"`

// dependentTargets are the device-mapper targets of active volumes with dependents, pools
// excepted.
var dependentTargets = []string{"snapshot-origin", "snapshot-merge", "cache", "writecache"}

// Dependents lists the dependents of the group's volumes, by the volumes' names.
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

func (i inspection) HasDependents(group, volume string) (bool, error) {
	targets, err := dmTable(layout.DeviceName(group, volume))
	return slices.ContainsFunc(targets, func(t devmapper.Target) bool { return slices.Contains(dependentTargets, t.Kind) }), err
}
