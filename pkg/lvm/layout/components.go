package layout

import (
	"regexp"
	"slices"
	"strings"
)

// DeviceName returns the device-mapper name of a volume. It doubles the hyphens within the two
// names.
func DeviceName(group, volume string) string {
	double := func(s string) string { return strings.ReplaceAll(s, "-", "--") }
	return double(group) + "-" + double(volume)
}

// component matches LVM's device names of components of RAID volumes, thin pools, caches, and
// volumes with a cache or integrity, such as carve-x_rimage_0 of carve-x and carve-y_tdata of
// carve-y-tpool.
var component = regexp.MustCompile(`^(.+)_(?:rimage_[0-9]+|rmeta_[0-9]+|tdata|tmeta|cdata|cmeta|corig|wcorig|iorig|imeta)$`)

var ofCache = regexp.MustCompile(`_cvol|[-_]c(?:data|meta)`)

// HaveCache reports whether device-mapper names may include devices of a cache in a group.
func HaveCache(names []string, group string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		volume, ours := strings.CutPrefix(name, DeviceName(group, ""))
		// Two hyphens stand for one within another group's name.
		return ours && !strings.HasPrefix(volume, "-") && ofCache.MatchString(volume)
	})
}

// IsComponent reports whether LVM names components like this. A killed command leaves some
// visible, with their volume's tags.
func IsComponent(name string) bool { return component.MatchString(name) }

// IsOf reports whether LVM's name of a device belongs to a volume or one of its components.
func IsOf(name, volume string) bool {
	rest, ok := strings.CutPrefix(name, volume)
	return ok && (rest == "" || rest[0] == '_' || rest[0] == '-')
}

// mostLevels bounds the nesting of components even in malformed metadata.
const mostLevels = 16

// Leftovers returns the devices that are components of the given volumes but lie below no
// device of these. names are device-mapper's. caches maps the names of caches, which do not
// follow from a volume's, to the volumes that have them, hidden ones included.
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

// aboveOf returns the device name that a component belongs to. owners maps caches to their
// volumes' devices.
func aboveOf(name string, owners map[string]string) (above string, ok bool) {
	// The data and metadata of a cache volume, unlike a cache pool's, have layers of their own.
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

// Level orders devices from the bottom up, by device-mapper name: 0 for volumes, -1 for thin
// pools, less for components: -3 for an image of the mirror with a pool's data.
func Level(name string) int {
	if above := component.FindStringSubmatch(name); above != nil {
		return min(-1, Level(above[1])) - 1
	}
	// Two hyphens stand for one within a volume's name.
	if strings.HasSuffix(name, "-tpool") && !strings.HasSuffix(name, "--tpool") {
		return -1
	}
	return 0
}
