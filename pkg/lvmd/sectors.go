package lvmd

import (
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
)

// checkSectors rejects a file system whose blocks are smaller than the sectors of a disk that
// may hold the volume, and a copy onto disks with larger sectors than its source's. It leaves
// disks with unknown sectors to mkfs. A snapshot is on its source's disks.
func (s *creator) checkSectors(v *inventory.Volume, from *inventory.Source) error {
	switch {
	case from != nil && from.Snapshot:
		return nil
	case from != nil:
		return s.checkLargerSectors("copying volume "+from.Volume.ID(), s.deviceSectors(from.Volume), v.Group())
	}
	for _, disk := range v.Group().Disks() {
		sector, err := s.sectorSize(disk)
		if err != nil {
			continue
		}
		if err := v.Ident().CheckSectors(sector); err != nil {
			return err
		}
	}
	return nil
}

// checkGrowth is checkLargerSectors for a volume. A thin volume's extents are its pool's.
func (s *expander) checkGrowth(v *inventory.Volume) error {
	if v.IsThin() {
		return nil
	}
	return s.checkLargerSectors("expanding volume "+v.ID(), s.deviceSectors(v), v.Group())
}

// checkGrowth is checkLargerSectors for a pool's data; the metadata's sectors do not reach its
// volumes.
func (s *poolKeeper) checkGrowth(p *inventory.Pool) error {
	data := "/dev/mapper/" + layout.DeviceName(p.Group().Name(), p.Name()+"_tdata")
	return s.checkLargerSectors("extending thin pool "+p.Name(), s.sectors(data), p.Group())
}

// sectors returns a device's sector size in bytes, or zero if it is unknown.
func (c *core) sectors(path string) int64 {
	if size, err := c.sectorSize(path); err == nil {
		return size
	}
	return 0
}

func (c *core) deviceSectors(v *inventory.Volume) int64 {
	if d, err := c.groups.Device(v); err == nil {
		return c.sectors(d.Path)
	}
	return 0
}

// checkLargerSectors rejects putting data from sectors of own bytes onto disks of a group with larger
// ones: the kernel could not mount a file system made for smaller ones. It accepts unknown sizes.
func (c *core) checkLargerSectors(doing string, own int64, g *inventory.Group) error {
	if own == 0 {
		return nil
	}
	for _, disk := range g.Disks() {
		if sector := c.sectors(disk); sector > own {
			return apierror.NoSpace("%s: its sectors have %d bytes, those of disk %s of volume group %q %d: what is on it could not be used there; "+
				"keep LVM from that disk (pvchange --allocatable n %s)", doing, own, disk, g.Name(), sector, disk)
		}
	}
	return nil
}
