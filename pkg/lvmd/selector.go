package lvmd

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
)

// instanceStores are the models of the disks that clouds call local: they hold
// nothing that outlives the machine.
var instanceStores = []string{
	"Amazon EC2 NVMe Instance Storage",
	"Microsoft NVMe Direct Disk*",
	"nvme_card", "nvme_card[0-9]*", // Google's; nvme_card-pd is a persistent disk
}

// smallestDevice is the least that is worth a place in a group, in bytes.
const smallestDevice = 32 << 20

// byIDDirectory is where udev puts the names that BlockDevice.IDs has.
const byIDDirectory = "/dev/disk/by-id/"

// selects tells whether all conditions of a selector hold for a device.
// literal is true when the selector names this very device, without wildcards.
func selects(s *config.DeviceSelector, d *lvm.BlockDevice) (ok, literal bool) {
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
		s.InstanceStore && !(d.NVMe && slices.ContainsFunc(instanceStores, func(m string) bool { return matches(m, d.Model) })):
		return false, false
	}
	return true, exact(s.Path) || exact(s.ByID)
}

// accepts is what lvm.Groups.Limit wants for a filter: nil for one that lets all pass.
func accepts(f config.DeviceFilter) func(*lvm.BlockDevice) bool {
	if f.IsEmpty() {
		return nil
	}
	selected := func(by []config.DeviceSelector, d *lvm.BlockDevice) bool {
		return slices.ContainsFunc(by, func(s config.DeviceSelector) bool {
			ok, _ := selects(&s, d)
			return ok
		})
	}
	return func(d *lvm.BlockDevice) bool {
		return (len(f.Allow) == 0 || selected(f.Allow, d)) && !selected(f.Deny, d)
	}
}

// pathsOf are the paths that a configuration may call a device by.
func pathsOf(d *lvm.BlockDevice) []string {
	paths := []string{d.Path}
	if d.Mapping != "" {
		paths = append(paths, "/dev/mapper/"+d.Mapping)
	}
	for _, id := range d.IDs {
		paths = append(paths, byIDDirectory+id)
	}
	return paths
}

// refusal says why a selected device is not taken.
type refusal struct {
	// kind is one of a few words, for metrics; message is for people.
	kind, message string
}

func refuse(kind, format string, args ...any) *refusal {
	return &refusal{kind: kind, message: fmt.Sprintf(format, args...)}
}

// judge decides about a device by what the kernel says of it; nil means that
// nothing speaks against it.
func judge(vg *config.VolumeGroup, d *lvm.BlockDevice) *refusal {
	switch {
	case d.ReadOnly:
		return refuse("read_only", "the kernel lets nobody write to it")
	case len(d.Partitions) > 0:
		return refuse("partitioned", "it has the partitions %s; name one of them without wildcards to use it", strings.Join(d.Partitions, ", "))
	case len(d.Holders) > 0:
		return refuse("in_use", "%s lies on it", strings.Join(d.Holders, ", "))
	case d.Size < smallestDevice:
		return refuse("too_small", "it has %d bytes; at least %d are needed", d.Size, smallestDevice)
	case vg.Medium == config.PMEM && !d.DAX:
		return refuse("not_dax", "it cannot be mapped directly into memory (its queue/dax is not 1), and the group's medium is pmem")
	}
	return nil
}

// judgeContents decides about a device by what is on it. finish is true when
// it is a physical volume that an earlier lvmd made for this group, and ended
// before it joined. overwrite is true when what is on it may be destroyed.
func judgeContents(vg *config.VolumeGroup, d *lvm.BlockDevice, c *lvm.Contents, intents map[string]deviceRecord) (finish, overwrite bool, why *refusal) {
	listed := slices.ContainsFunc(pathsOf(d), func(p string) bool { return slices.Contains(vg.AllowSignatures, p) })
	switch {
	case c.Empty():
		return false, false, nil
	case c.Partitioned:
		return false, false, refuse("partitioned", "it has a partition table (%s); delete it with wipefs to use the whole device", c)
	case c.Label != nil && c.Label.Group != "":
		return false, false, refuse("other_group", "it belongs to volume group %q", c.Label.Group)
	case c.Label != nil && !c.Label.Orphan:
		return false, false, refuse("other_group", "it is a physical volume that keeps no metadata: whether it belongs to a volume group cannot be told")
	case c.Label != nil && isIntent(intents, c.Label.UUID):
		return true, false, nil
	case listed:
		return false, true, nil
	case c.Label != nil:
		return false, false, refuse("signature", "it is a physical volume that lvmd did not make; remove that with pvremove, or list the device under allowSignatures")
	case c.Unknown:
		return false, false, refuse("signature", "its first 4096 bytes are not empty; clear them with blkdiscard or dd, or list the device under allowSignatures")
	}
	return false, false, refuse("signature", "it has a signature (%s); remove that with wipefs, or list the device under allowSignatures", c)
}

func isIntent(records map[string]deviceRecord, uuid string) bool {
	r, ok := records[uuid]
	return ok && !r.Joined
}
