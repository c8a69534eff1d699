package layout

import (
	"regexp"
	"strings"
)

// DeviceName is the device-mapper name of a volume: hyphens within the two names
// are doubled so that the one between them can be found.
func DeviceName(group, volume string) string {
	double := func(s string) string { return strings.ReplaceAll(s, "-", "--") }
	return double(group) + "-" + double(volume)
}

// component matches the names of LVM's devices for components of RAID volumes and of
// thin pools, such as carve-x_rimage_0 of carve-x and carve-y_tdata of
// carve-y-tpool.
var component = regexp.MustCompile(`^(.+)_(?:rimage_[0-9]+|rmeta_[0-9]+|tdata|tmeta)$`)

// IsComponent reports whether a name is one that LVM gives to components. A command that was killed leaves
// some visible, with the tags of their volume.
func IsComponent(name string) bool { return component.MatchString(name) }

// IsOf reports whether LVM's name of a device is that of a volume or of a component of it.
func IsOf(name, volume string) bool {
	rest, ok := strings.CutPrefix(name, volume)
	return ok && (rest == "" || rest[0] == '_' || rest[0] == '-')
}

// Leftovers are those of the devices that are components of the volumes of a group, and
// not below a device of the volume. names are device-mapper's.
func Leftovers(names []string, group string, volumes []string) []string {
	there, wanted := map[string]bool{}, map[string]bool{}
	for _, v := range volumes {
		wanted[DeviceName(group, v)] = true
	}
	for _, name := range names {
		there[name] = true
	}
	var alone []string
	for _, name := range names {
		above := component.FindStringSubmatch(name)
		if above != nil && wanted[volumeOf(name)] && !there[above[1]] && !there[above[1]+"-tpool"] {
			alone = append(alone, name)
		}
	}
	return alone
}

// volumeOf is the device's name of the volume that a component, or a component of one,
// belongs to.
func volumeOf(name string) string {
	for {
		above := component.FindStringSubmatch(name)
		if above == nil {
			return name
		}
		name = above[1]
	}
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
