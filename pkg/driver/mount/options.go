package mount

import (
	"strings"

	"golang.org/x/sys/unix"
)

// atimeMask covers the attributes that say when access times are written. They are one
// value, of which zero is relatime.
const atimeMask = unix.MOUNT_ATTR__ATIME

// layerOptions are the options that belong to a layer: attributes of fsmount(2).
var layerOptions = map[string]struct{ clear, set int }{
	"ro":          {set: unix.MOUNT_ATTR_RDONLY},
	"rw":          {clear: unix.MOUNT_ATTR_RDONLY},
	"nosuid":      {set: unix.MOUNT_ATTR_NOSUID},
	"suid":        {clear: unix.MOUNT_ATTR_NOSUID},
	"nodev":       {set: unix.MOUNT_ATTR_NODEV},
	"dev":         {clear: unix.MOUNT_ATTR_NODEV},
	"noexec":      {set: unix.MOUNT_ATTR_NOEXEC},
	"exec":        {clear: unix.MOUNT_ATTR_NOEXEC},
	"nodiratime":  {set: unix.MOUNT_ATTR_NODIRATIME},
	"diratime":    {clear: unix.MOUNT_ATTR_NODIRATIME},
	"noatime":     {clear: atimeMask, set: unix.MOUNT_ATTR_NOATIME},
	"atime":       {clear: unix.MOUNT_ATTR_NOATIME},
	"strictatime": {clear: atimeMask, set: unix.MOUNT_ATTR_STRICTATIME},
	"relatime":    {clear: atimeMask},
	// What the kernel does anyway.
	"norelatime": {},
	"defaults":   {},
}

// parameter is one option of a file system, as fsconfig(2) takes it.
type parameter struct {
	key, value string
	// flag: the option has no value.
	flag bool
}

// split sorts options into the attributes of the layer and the parameters of the file
// system. Later options win over earlier ones: the kernel sees to that for parameters.
func split(options []string) (attributes int, parameters []parameter) {
	for _, option := range options {
		layer, ok := layerOptions[option]
		attributes = attributes&^layer.clear | layer.set
		// A file system is read-only, too, not its layer alone.
		if ok && option != "ro" && option != "rw" {
			continue
		}
		key, value, hasValue := strings.Cut(option, "=")
		// Quotes keep commas within a list of options together. Here they would be part of
		// the value.
		if len(value) >= 2 && strings.HasPrefix(value, `"`) && strings.HasSuffix(value, `"`) {
			value = value[1 : len(value)-1]
		}
		parameters = append(parameters, parameter{key: key, value: value, flag: !hasValue})
	}
	return attributes, parameters
}
