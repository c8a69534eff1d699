package provision

import (
	"path"
	"slices"
	"strings"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/blockdev"
)

// instanceStores are models of ephemeral disks in clouds, which do not outlive the machine.
var instanceStores = []string{
	"Amazon EC2 NVMe Instance Storage",
	"Microsoft NVMe Direct Disk*",
	"nvme_card", "nvme_card[0-9]*", // Google's; nvme_card-pd is a persistent disk
}

// byIDDirectory is where udev puts the names of Device.IDs.
const byIDDirectory = "/dev/disk/by-id/"

// selects reports whether a device meets all conditions of a selector. literal is true if a name
// without wildcards selects it.
func selects(s *config.DeviceSelector, d *blockdev.Device) (ok, literal bool) {
	matches := func(pattern string, names ...string) bool {
		return slices.ContainsFunc(names, func(n string) bool {
			ok, err := path.Match(pattern, n)
			return err == nil && ok
		})
	}
	exact := func(pattern string) bool { return pattern != "" && !strings.ContainsAny(pattern, `*?[\`) }
	switch {
	case s.Path != "" && !matches(s.Path, pathsOf(d)...),
		s.ByID != "" && !matches(s.ByID, d.IDs...),
		s.Model != "" && !matches(s.Model, d.Model),
		s.MinSize > 0 && d.Size < s.MinSize,
		s.MaxSize > 0 && d.Size > s.MaxSize,
		s.Rotational != nil && *s.Rotational != d.Rotational,
		s.InstanceStore && !(d.NVMe() && slices.ContainsFunc(instanceStores, func(m string) bool { return matches(m, d.Model) })):
		return false, false
	}
	return true, exact(s.Path) || exact(s.ByID)
}

// Filter returns a filter for lvm.Groups.Limit; nil lets all devices pass.
func Filter(f config.DeviceFilter) func(*blockdev.Device) bool {
	if f.IsEmpty() {
		return nil
	}
	selected := func(by []config.DeviceSelector, d *blockdev.Device) bool {
		return slices.ContainsFunc(by, func(s config.DeviceSelector) bool {
			ok, _ := selects(&s, d)
			return ok
		})
	}
	return func(d *blockdev.Device) bool {
		return (len(f.Allow) == 0 || selected(f.Allow, d)) && !selected(f.Deny, d)
	}
}

func pathsOf(d *blockdev.Device) []string {
	paths := d.Paths()
	for _, id := range d.IDs {
		paths = append(paths, byIDDirectory+id)
	}
	return paths
}
