package mount

import (
	"strings"

	"golang.org/x/sys/unix"
)

// atimeMask covers the attributes for access times, which are one value; zero
// is relatime.
const atimeMask = unix.MOUNT_ATTR__ATIME

// layerOptions are options of the layer, as attributes for fsmount(2).
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
	// The kernel's defaults.
	"norelatime": {},
	"defaults":   {},
}

type parameter struct {
	key, value string
	flag       bool
}

// split separates layer attributes from file system parameters. Later options
// win; for parameters the kernel ensures that.
func split(options []string) (attributes int, parameters []parameter) {
	for _, option := range options {
		layer, ok := layerOptions[option]
		attributes = attributes&^layer.clear | layer.set
		// The file system itself becomes read-only too, not just the layer.
		if ok && option != "ro" && option != "rw" {
			continue
		}
		key, value, hasValue := strings.Cut(option, "=")
		// In a list of options quotes protect commas. Here they would become
		// part of the value.
		if len(value) >= 2 && strings.HasPrefix(value, `"`) && strings.HasSuffix(value, `"`) {
			value = value[1 : len(value)-1]
		}
		parameters = append(parameters, parameter{key: key, value: value, flag: !hasValue})
	}
	return attributes, parameters
}
