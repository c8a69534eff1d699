package lvmd

import (
	"context"
	"errors"
	"slices"
	"strings"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/lvmd/volumegroup"
)

// Adopting a logical volume tags it, then renames it to an id. Tags without an id do not make a
// volume, so the rename decides. If a crash separates the two, the next attempt replaces the
// tags. After the rename, the next scan finds the volume as after a lost journal. A tag keeps
// the former name until the adoption is confirmed.

type adopter struct {
	*core
	probe func(device string) (filesystem.Info, error)
}

type candidate struct {
	group  *volumegroup.Group
	lv     *lvm.Volume
	ident  spec.Identity
	report *lvmdv1.Volume
}

func (c *candidate) tags() []string { return append(c.ident.Tags(), spec.AdoptedFromTag(c.lv.Name)) }

// AdoptVolume implements lvmdv1.LVMDServer.
func (s *Service) AdoptVolume(ctx context.Context, r *lvmdv1.AdoptVolumeRequest) (*lvmdv1.AdoptVolumeResponse, error) {
	if r.GetLvName() == "" {
		return nil, apierror.InvalidField("lv_name", "it is empty")
	}
	adopted, err := s.inventory.AdoptedBefore(r.GetName(), r.GetLvName())
	if adopted != nil || err != nil {
		return &lvmdv1.AdoptVolumeResponse{Volume: adopted}, err
	}
	c, err := s.adopter.candidate(ctx, r)
	if err != nil {
		return nil, apierror.From("adopting logical volume "+r.GetLvName(), err)
	}
	if r.GetDryRun() {
		return &lvmdv1.AdoptVolumeResponse{Volume: c.report}, nil
	}
	id, err := s.adopter.takeOver(ctx, c)
	if err != nil {
		return nil, apierror.From("adopting logical volume "+r.GetLvName(), err)
	}
	_, v, err := s.inventory.ReadVolume(id, "")
	if err != nil {
		return nil, apierror.OperationPending("logical volume %q is volume %s now, which volume group %q could not be scanned for yet", c.lv.Name, id, c.group.Name())
	}
	return &lvmdv1.AdoptVolumeResponse{Volume: v}, nil
}

func (s *adopter) candidate(ctx context.Context, r *lvmdv1.AdoptVolumeRequest) (*candidate, error) {
	home, lv, err := s.locate(ctx, r)
	if err != nil {
		return nil, err
	}
	g := s.groups.Named(home.Group.Name())
	if err := home.Takes(lv); err != nil {
		return nil, apierror.InvalidField("lv_name", "%s/%s %v", g.Name(), lv.Name, err)
	}
	request := &lvmdv1.CreateVolumeRequest{
		Name: r.GetName(), DeviceClass: r.GetDeviceClass(), RequiredBytes: lv.Size, Mode: r.GetMode(), Owner: r.GetOwner(),
	}
	info, err := s.lookInto(ctx, g, lv)
	switch {
	case r.GetMode() == lvmdv1.VolumeMode_VOLUME_MODE_BLOCK && (err == nil || errors.Is(err, filesystem.ErrUnformatted)):
		// A raw volume may hold anything.
	case errors.Is(err, filesystem.ErrUnformatted):
		return nil, apierror.InvalidField("mode", "%s/%s holds no file system that Carve mounts; it can be adopted as a raw volume", g.Name(), lv.Name)
	case err != nil:
		return nil, err
	default:
		request.FsType = string(info.Type)
	}
	ident, err := spec.FromRequest(request)
	if err != nil {
		return nil, err
	}
	ident.Class = home.Class
	if !ident.Block {
		ident.FSUUID = info.UUID
	}
	c := &candidate{group: g, lv: lv, ident: ident}
	c.report, err = home.Candidate(lv, ident, c.tags())
	return c, err
}

func (s *adopter) locate(ctx context.Context, r *lvmdv1.AdoptVolumeRequest) (in inventory.Home, lv *lvm.Volume, err error) {
	homes, err := s.inventory.Homes(r.GetDeviceClass(), r.GetVgName())
	if err != nil {
		return in, nil, err
	}
	var names []string
	for _, h := range homes {
		names = append(names, h.Group.Name())
	}
	found, err := s.lvm.Scan(ctx, names)
	if err != nil {
		return in, nil, err
	}
	for _, h := range homes {
		i := slices.IndexFunc(found, func(g lvm.Group) bool { return g.Name == h.Group.Name() })
		if i < 0 {
			continue
		}
		if one := found[i].Volume(r.GetLvName()); one != nil {
			if lv != nil {
				return in, nil, apierror.InvalidField("vg_name", "it is empty, and both %q and %q have a logical volume %q", in.Group.Name(), h.Group.Name(), lv.Name)
			}
			in, lv = h, one
		}
	}
	if lv == nil {
		return in, nil, apierror.VolumeNotFound(strings.Join(names, ",") + "/" + r.GetLvName())
	}
	return in, lv, nil
}

// lookInto probes a logical volume that no process has open, and activates it if necessary.
func (s *adopter) lookInto(ctx context.Context, g *volumegroup.Group, lv *lvm.Volume) (filesystem.Info, error) {
	device, err := s.lvm.Device(g.Name(), lv.Name)
	if errors.Is(err, lvm.ErrNotFound) {
		if device, err = s.activate(ctx, g, lv); err != nil {
			return filesystem.Info{}, err
		}
	}
	if err != nil {
		return filesystem.Info{}, err
	}
	if err := s.checkUnused(ctx, g, lv.Name); err != nil {
		return filesystem.Info{}, err
	}
	return s.probe(device.Path)
}

func (s *adopter) activate(ctx context.Context, g *volumegroup.Group, lv *lvm.Volume) (lvm.Device, error) {
	done, err := s.groups.Acquire(ctx, g)
	if err != nil {
		return lvm.Device{}, err
	}
	defer done()
	if lv.Pool != "" {
		// LVM would check the pool's metadata, which can exceed this command's timeout.
		if _, err := s.lvm.PoolStatus(g.Name(), lv.Pool); errors.Is(err, lvm.ErrNotFound) {
			return lvm.Device{}, apierror.DeviceMissing("thin pool %q of volume group %q, in which %q lies, has no device; activate it (lvchange --activate y)", lv.Pool, g.Name(), lv.Name)
		}
	}
	if err := s.lvm.Activate(s.work, g.Name(), []string{lv.Name}); err != nil {
		return lvm.Device{}, err
	}
	return s.lvm.Device(g.Name(), lv.Name)
}

func (s *adopter) checkUnused(ctx context.Context, g *volumegroup.Group, lv string) error {
	h, err := s.groups.OpenForeign(ctx, g, lv)
	switch {
	case err == nil:
		return h.Close()
	case errors.Is(err, lvm.ErrBusy):
		return apierror.VolumeInUse(g.Name()+"/"+lv, err)
	}
	return err
}

func (s *adopter) takeOver(ctx context.Context, c *candidate) (id string, err error) {
	g := c.group
	id = spec.NewVolumeID()
	return id, s.groups.Change(withTenant(ctx, &c.ident.Owner), g, func(ctx context.Context) (inventory.Effect, error) {
		if v, err := s.inventory.AdoptedBefore(c.ident.Name, c.lv.Name); v != nil || err != nil {
			return nil, apierror.OperationPending("a volume named %q is being made", c.ident.Name)
		}
		if err := s.checkUnused(ctx, g, c.lv.Name); err != nil {
			return nil, err
		}
		if err := s.lvm.Retag(ctx, g.Name(), c.lv.Name, ourTags(c.lv.Tags), c.tags()); err != nil {
			return nil, err
		}
		s.crash("adopt: tagged")
		if err := s.lvm.Rename(ctx, g.Name(), c.lv.Name, id); err != nil {
			return nil, err
		}
		s.crash("adopt: renamed")
		return inventory.Unknown(), nil
	})
}

func ourTags(tags []string) []string {
	return slices.DeleteFunc(slices.Clone(tags), func(t string) bool { return !spec.IsOurTag(t) })
}

// ConfirmAdoption implements lvmdv1.LVMDServer.
func (s *Service) ConfirmAdoption(ctx context.Context, r *lvmdv1.ConfirmAdoptionRequest) (*lvmdv1.ConfirmAdoptionResponse, error) {
	v, err := s.claimAdopted(r.GetId(), inventory.Noting)
	if err != nil {
		return nil, err
	}
	if err := s.adopter.confirm(ctx, v); err != nil {
		v.Release()
		return nil, apierror.From("confirming the adoption of volume "+v.ID(), err)
	}
	return &lvmdv1.ConfirmAdoptionResponse{Volume: v.Report()}, nil
}

// confirm releases v unless it fails.
func (s *adopter) confirm(ctx context.Context, v *inventory.Volume) error {
	confirmed := v.Record()
	if confirmed.AdoptedFrom == "" {
		v.Release()
		return nil
	}
	g := s.groups.Of(v)
	err := s.groups.Change(onBehalfOf(ctx, v), g, func(ctx context.Context) (inventory.Effect, error) {
		return inventory.Tagged(), s.lvm.Untag(volumegroup.ForClassOf(ctx, v), g.Name(), []string{v.ID()}, spec.AdoptedFromTag(confirmed.AdoptedFrom))
	})
	if err != nil {
		return err
	}
	s.crash("adopt: confirmed")
	confirmed.AdoptedFrom = ""
	if err := s.journal.PutVolume(confirmed); err != nil {
		return err
	}
	v.SetRecord(confirmed)
	return nil
}

// RevertAdoption implements lvmdv1.LVMDServer. After a crash past the rename, the tags mean
// nothing.
func (s *Service) RevertAdoption(ctx context.Context, r *lvmdv1.RevertAdoptionRequest) (*lvmdv1.RevertAdoptionResponse, error) {
	v, err := s.claimAdopted(r.GetId(), inventory.Deleting)
	if err != nil {
		return nil, err
	}
	defer v.Release()
	from := v.Record().AdoptedFrom
	if from == "" {
		return nil, apierror.InvalidField("id", "volume %s was not adopted, or its adoption was confirmed", v.ID())
	}
	err = s.adopter.revert(ctx, v, from)
	if err == nil {
		err = s.journal.RemoveVolumes([]string{v.ID()})
	}
	if err != nil {
		return nil, apierror.From("reverting the adoption of volume "+v.ID(), err)
	}
	return &lvmdv1.RevertAdoptionResponse{VgName: v.Group().Name(), LvName: from}, nil
}

func (s *adopter) revert(ctx context.Context, v *inventory.Volume, from string) error {
	g := s.groups.Of(v)
	return s.groups.Change(onBehalfOf(ctx, v), g, func(ctx context.Context) (inventory.Effect, error) {
		if err := s.checkUnused(ctx, g, v.ID()); err != nil && !errors.Is(err, lvm.ErrNotFound) {
			return nil, err
		}
		if err := s.lvm.Rename(ctx, g.Name(), v.ID(), from); err != nil {
			return nil, err
		}
		s.crash("adopt: reverted")
		limits, _ := v.LimitTags()
		return inventory.Reverted(v), s.lvm.Retag(ctx, g.Name(), from, slices.Concat(v.Ident().Tags(), limits, []string{spec.AdoptedFromTag(from)}), nil)
	})
}

func (s *Service) claimAdopted(id string, claim inventory.State) (*inventory.Volume, error) {
	release, err := s.admit()
	if err != nil {
		return nil, err
	}
	defer release()
	return s.inventory.ClaimAdopted(id, claim)
}
