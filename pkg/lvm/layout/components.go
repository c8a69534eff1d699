package layout

import (
	"regexp"
	"slices"
	"strings"
)

// DeviceName is the device-mapper name of a volume: hyphens within the two names
// are doubled so that the one between them can be found.
func DeviceName(group, volume string) string {
	double := func(s string) string { return strings.ReplaceAll(s, "-", "--") }
	return double(group) + "-" + double(volume)
}

// component matches the names of LVM's devices for components of RAID volumes, of thin pools, of caches, and of
// volumes with a cache or with integrity, such as carve-x_rimage_0 of carve-x and carve-y_tdata of
// carve-y-tpool.
var component = regexp.MustCompile(`^(.+)_(?:rimage_[0-9]+|rmeta_[0-9]+|tdata|tmeta|cdata|cmeta|corig|wcorig|iorig|imeta)$`)

// ofCache matches what the names of a cache's devices have in them.
var ofCache = regexp.MustCompile(`_cvol|[-_]c(?:data|meta)`)

// HaveCache reports whether devices of a cache may be among those of a group. names are device-mapper's.
func HaveCache(names []string, group string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		volume, ours := strings.CutPrefix(name, DeviceName(group, ""))
		// Two hyphens are one within the name of another group.
		return ours && !strings.HasPrefix(volume, "-") && ofCache.MatchString(volume)
	})
}

// IsComponent reports whether a name is one that LVM gives to components. A command that was killed leaves
// some visible, with the tags of their volume.
func IsComponent(name string) bool { return component.MatchString(name) }

// IsOf reports whether LVM's name of a device is that of a volume or of a component of it.
func IsOf(name, volume string) bool {
	rest, ok := strings.CutPrefix(name, volume)
	return ok && (rest == "" || rest[0] == '_' || rest[0] == '-')
}

// mostLevels bounds how many components lie below one another, in metadata that make no sense, too.
const mostLevels = 16

// Leftovers are those of the devices that are components of the volumes of a group, and
// not below a device of the volume. names are device-mapper's. A cache is not named after the volume that has it:
// caches are the group's volumes that have one, hidden ones too, by its name.
func Leftovers(names []string, group string, volumes []string, caches map[string]string) []string {
	there, wanted, owners := map[string]bool{}, map[string]bool{}, map[string]string{}
	for _, v := range volumes {
		wanted[DeviceName(group, v)] = true
	}
	for _, name := range names {
		there[name] = true
	}
	for cache, owner := range caches {
		owners[DeviceName(group, cache)] = DeviceName(group, owner)
	}
	var alone []string
	for _, name := range names {
		volume, isBelow := name, false
		for range mostLevels {
			above, ok := aboveOf(volume, owners)
			if !ok {
				break
			}
			volume, isBelow = above, isBelow || there[above] || there[above+"-tpool"]
		}
		if volume != name && wanted[volume] && !isBelow {
			alone = append(alone, name)
		}
	}
	return alone
}

// aboveOf is the device's name of what a component is one of. owners are the volumes that have a cache, by its name.
func aboveOf(name string, owners map[string]string) (above string, ok bool) {
	// Within a cache that is no pool, data and metadata have devices of their own.
	for _, layer := range []string{"", "-cdata", "-cmeta"} {
		if above, ok = owners[strings.TrimSuffix(name, layer)]; ok {
			return above, true
		}
	}
	if m := component.FindStringSubmatch(name); m != nil {
		return m[1], true
	}
	return "", false
}

// Level orders devices by what lies on what, from below. It is 0 for volumes, -1 for
// thin pools, and less for what a volume or a pool is made of: -3 for an image of
// the mirror that holds a pool's data. name is device-mapper's.
func Level(name string) int {
	if above := component.FindStringSubmatch(name); above != nil {
		return min(-1, Level(above[1])) - 1
	}
	// Two hyphens are one within a volume's name.
	if strings.HasSuffix(name, "-tpool") && !strings.HasSuffix(name, "--tpool") {
		return -1
	}
	return 0
}
