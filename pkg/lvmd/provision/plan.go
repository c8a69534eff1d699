package provision

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/wakeup"
)

// work is the difference between a group and the configuration.
type work struct {
	// grown are devices of the group that have become larger.
	grown []string
	// fresh are selected devices to examine.
	fresh   []blockdev.Device
	refused map[string]*Refusal
	again   time.Time
	// kept is why the group must not be made, or empty. With givenUp, it need not await its former
	// disks.
	kept    string
	givenUp bool
	// sector is the logical block size of the group's disks in bytes; zero if unknown.
	sector int64
	// made has the UUIDs of the physical volumes on all devices.
	made map[string]bool
}

func (w *work) any() bool { return len(w.grown)+len(w.fresh) > 0 }

// plan compares a group, or nil, with the machine's devices. It opens devices only for reading, and
// runs no command.
func (p *Provisioner) plan(g *group, scanned *lvm.Group, all []blockdev.Device, taken map[string]bool) work {
	w := work{refused: map[string]*Refusal{}}
	members := map[string]bool{}
	if scanned != nil {
		for _, d := range scanned.Devices {
			members[d.UUID] = true
			if d.Missing {
				continue
			}
			if i := slices.IndexFunc(all, func(b blockdev.Device) bool { return b.Path == d.Path }); i >= 0 {
				w.sector = max(w.sector, all[i].LogicalBlockSize)
			}
			label, err := p.devices.Label(d.Path)
			// The size that LVM recorded avoids retries: it changes with each pvresize.
			if err == nil && label.UUID == d.UUID && label.Size-label.KnownSize >= scanned.ExtentSize &&
				label.Size-d.DataOffset-d.Extents*scanned.ExtentSize >= scanned.ExtentSize {
				w.grown = append(w.grown, d.Path)
			}
		}
	}
	seen := map[string]bool{}
	for i := range all {
		d := &all[i]
		if !g.wants(d) || taken[d.Path] {
			continue
		}
		if d.UserData != "" {
			w.refused[d.Path] = refuse("on_volume", "%s", d.UserData)
			continue
		}
		label, err := p.devices.Label(d.Path)
		if err == nil && members[label.UUID] {
			continue
		}
		if errors.Is(err, lvm.ErrTimedOut) {
			w.refused[d.Path] = refuse("unreadable", "it does not answer")
			continue
		}
		if why := checkDevice(&g.VolumeGroup, d); why != nil {
			w.refused[d.Path] = why
			continue
		}
		key := identityOf(d)
		seen[key] = true
		if old, ok := g.examined[key]; ok {
			if !old.stale || time.Now().Before(old.due) {
				w.refused[d.Path] = old.why
				if old.stale {
					w.again = wakeup.Earlier(w.again, old.due)
				}
				continue
			}
		}
		w.fresh = append(w.fresh, *d)
	}
	maps.DeleteFunc(g.examined, func(key string, _ examination) bool { return !seen[key] })
	return w
}

// identityOf distinguishes a device from earlier ones of its name.
func identityOf(d *blockdev.Device) string {
	return fmt.Sprintf("%s %d %d", d.Name, d.Sequence, d.Size)
}

// wants reports whether the configuration selects a device. It never selects logical volumes, and
// partitions and software devices only by a name without wildcards.
func (g *group) wants(d *blockdev.Device) bool {
	if d.Mapping.LogicalVolume {
		return false
	}
	if g.LoopFile != nil {
		return d.Path == g.loop
	}
	return slices.ContainsFunc(g.Devices, func(s config.DeviceSelector) bool {
		ok, literal := selects(&s, d)
		return ok && (literal || d.Parent == "" && !d.Virtual)
	})
}

// isFullMember reports whether the label assigns all of a device to the group: while LVM does not
// know the group, it needs no work.
func (p *Provisioner) isFullMember(g *group, path string) bool {
	label, err := p.devices.Label(path)
	return err == nil && label.Group == g.Name && label.Size-label.KnownSize < smallestGrowth
}
