package config

import "reflect"

// Same compares two volume groups without their positions in the file.
func (g VolumeGroup) Same(o VolumeGroup) bool {
	g.file, g.at, g.path = o.file, o.at, o.path
	return reflect.DeepEqual(g, o)
}
