package lvmd

import (
	"github.com/carve-csi/carve/pkg/lvm"
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
		source, err := s.groups.Device(from.Volume)
		return s.checkLargerSectors("copying volume "+from.Volume.ID(), source, err, v.Group())
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
	d, err := s.groups.Device(v)
	return s.checkLargerSectors("expanding volume "+v.ID(), d, err, v.Group())
}

// checkGrowth is checkLargerSectors for a pool's data; the metadata's sectors do not reach its
// volumes.
func (s *poolKeeper) checkGrowth(p *inventory.Pool) error {
	data := lvm.Device{Path: "/dev/mapper/" + layout.DeviceName(p.Group().Name(), p.Name()+"_tdata")}
	return s.checkLargerSectors("extending thin pool "+p.Name(), data, nil, p.Group())
}

// checkLargerSectors rejects putting data from one device onto disks of a group with larger
// sectors: the kernel could not mount a file system made for smaller ones. It skips devices with
// unknown sectors.
func (c *core) checkLargerSectors(doing string, data lvm.Device, unknown error, g *inventory.Group) error {
	if unknown != nil {
		return nil
	}
	own, err := c.sectorSize(data.Path)
	if err != nil {
		return nil
	}
	for _, disk := range g.Disks() {
		if sector, err := c.sectorSize(disk); err == nil && sector > own {
			return apierror.NoSpace("%s: its sectors have %d bytes, those of disk %s of volume group %q %d: what is on it could not be used there; "+
				"keep LVM from that disk (pvchange --allocatable n %s)", doing, own, disk, g.Name(), sector, disk)
		}
	}
	return nil
}
