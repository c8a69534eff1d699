package config

import "reflect"

// Same reports whether two volume groups are to be made and grown in the same
// way, wherever in a file that stands.
func (g VolumeGroup) Same(o VolumeGroup) bool {
	g.file, g.at, g.path = o.file, o.at, o.path
	return reflect.DeepEqual(g, o)
}
