package mount

import (
	"strings"

	"golang.org/x/sys/unix"
)

// layerFlags are the options that mount(2) takes as bits. Those that clear a
// bit are there so that they do not reach the file system, which would not
// know them.
var layerFlags = map[string]struct {
	set, clear uintptr
}{
	"ro":          {set: unix.MS_RDONLY},
	"rw":          {clear: unix.MS_RDONLY},
	"nosuid":      {set: unix.MS_NOSUID},
	"suid":        {clear: unix.MS_NOSUID},
	"nodev":       {set: unix.MS_NODEV},
	"dev":         {clear: unix.MS_NODEV},
	"noexec":      {set: unix.MS_NOEXEC},
	"exec":        {clear: unix.MS_NOEXEC},
	"sync":        {set: unix.MS_SYNCHRONOUS},
	"async":       {clear: unix.MS_SYNCHRONOUS},
	"dirsync":     {set: unix.MS_DIRSYNC},
	"noatime":     {set: unix.MS_NOATIME},
	"atime":       {clear: unix.MS_NOATIME},
	"nodiratime":  {set: unix.MS_NODIRATIME},
	"diratime":    {clear: unix.MS_NODIRATIME},
	"relatime":    {set: unix.MS_RELATIME},
	"norelatime":  {clear: unix.MS_RELATIME},
	"strictatime": {set: unix.MS_STRICTATIME},
	"lazytime":    {set: unix.MS_LAZYTIME},
	"nolazytime":  {clear: unix.MS_LAZYTIME},
	"defaults":    {},
}

// split sorts options into bits for mount(2) and the string for the file
// system. Later options win over earlier ones.
func split(options []string) (flags uintptr, data string) {
	var rest []string
	for _, option := range options {
		if f, ok := layerFlags[option]; ok {
			flags = flags&^f.clear | f.set
			continue
		}
		rest = append(rest, option)
	}
	return flags, strings.Join(rest, ",")
}
