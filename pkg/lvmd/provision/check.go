package provision

import (
	"fmt"
	"slices"
	"strings"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
	"github.com/carve-csi/carve/pkg/quantity"
)

// smallestDevice is the minimum size of a group's disk, in bytes.
const smallestDevice = 32 << 20

// Refusal is the reason why a selected device is not used.
type Refusal struct {
	// Kind is one of a few words, for metrics; Message is for people.
	Kind, Message string
}

func refuse(kind, format string, args ...any) *Refusal {
	return &Refusal{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// inUse is the Kind for a device with another one on it.
const inUse = "in_use"

// checkDevice judges a device by the kernel's reports; nil means usable.
func checkDevice(vg *config.VolumeGroup, d *blockdev.Device) *Refusal {
	switch {
	case d.ReadOnly:
		return refuse("read_only", "the kernel refuses writes to it")
	case len(d.Partitions) > 0:
		return refuse("partitioned", "it has the partitions %s; name one of them without wildcards to use it", strings.Join(d.Partitions, ", "))
	case len(d.Holders) > 0:
		return refuse(inUse, "%s lies on it", strings.Join(d.Holders, ", "))
	case d.Size < smallestDevice:
		return refuse("too_small", "it has %s; at least %s is needed", quantity.Bytes(d.Size), quantity.Bytes(smallestDevice))
	case vg.Medium == config.PMEM && !d.DAX:
		return refuse("not_dax", "it cannot be mapped directly into memory (its queue/dax is not 1), and the group's medium is pmem")
	}
	return nil
}

// checkContents judges a device by its contents; nil means usable. finish is true for a physical
// volume that an earlier lvmd made for the group but did not add. overwrite allows destroying the
// contents.
func checkContents(vg *config.VolumeGroup, d *blockdev.Device, c *lvm.Contents, intents map[string]journal.Device) (finish, overwrite bool, why *Refusal) {
	listed := slices.ContainsFunc(pathsOf(d), func(p string) bool { return slices.Contains(vg.AllowSignatures, p) })
	switch {
	case c.Empty():
		return false, false, nil
	case c.Partitioned:
		return false, false, refuse("partitioned", "it has a partition table (%s); to use the whole device, look at what it holds (lsblk -f), then remove the table with wipefs", c)
	case c.Label != nil && c.Label.Group != "":
		return false, false, refuse("other_group", "it belongs to volume group %q", c.Label.Group)
	case c.Label != nil && !c.Label.Orphan:
		return false, false, refuse("other_group", "it is a physical volume that keeps no metadata: whether it belongs to a volume group cannot be known")
	case c.Label != nil && isIntent(intents, c.Label.UUID):
		return true, false, nil
	case listed:
		return false, true, nil
	case c.Label != nil:
		return false, false, refuse("signature", "it is a physical volume that lvmd did not make; look at it (pvs --all), then remove that with pvremove, or list the device under allowSignatures")
	case c.Unknown:
		return false, false, refuse("signature", "its first 4096 bytes are not empty; look at them (hexdump -C), then clear them with blkdiscard or dd, or list the device under allowSignatures")
	}
	return false, false, refuse("signature", "it has a signature (%s); look at what it holds (lsblk -f), then remove that with wipefs, or list the device under allowSignatures", c)
}

func isIntent(records map[string]journal.Device, uuid string) bool {
	r, ok := records[uuid]
	return ok && !r.Joined
}
