package lvmd

import (
	"context"
	"errors"
	"fmt"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
)

// readFormat takes what a request says about the file system into the
// identity, as far as it can be judged without the class.
func (i *identity) readFormat(r *lvmdv1.CreateVolumeRequest) error {
	t, err := filesystem.ParseType(r.GetFsType())
	if err != nil {
		return invalidField("fs_type", "%v", err)
	}
	i.FSType, i.Profile = t, filesystem.Profile(r.GetProfile())
	if err := i.checkLUKS(); err != nil {
		return err
	}
	if i.Profile != filesystem.Usual && i.Source != "" {
		return invalidField("profile", "%q given together with a source; what is made of another volume keeps its file system", i.Profile)
	}
	if err := i.use().Check(); err != nil {
		return invalidField("profile", "%v", err)
	}
	if i.Settings, err = filesystem.ParseSettings(i.use(), r.GetFsSettings()); err != nil {
		return invalidField("fs_settings", "%v", err)
	}
	return nil
}

// use is what the volume's file system is made for.
func (i identity) use() filesystem.Use {
	return filesystem.Use{Type: i.FSType, DAX: i.DAX, Profile: i.Profile}
}

// checkMedium judges the file system in the light of the class that was found.
func (i identity) checkMedium() error {
	if i.Block || !i.DAX {
		return nil
	}
	if err := i.use().Check(); err != nil {
		return invalidField("fs_type", "%v", err)
	}
	if _, err := filesystem.ParseSettings(i.use(), i.Settings.Map()); err != nil {
		return invalidField("fs_settings", "%v", err)
	}
	return nil
}

// cloneable says whether something can be made of the volume. A scratch file
// system that was not taken off looks as one that is to be made anew, and so
// would its clones.
func (i identity) cloneable(field, id string) error {
	if i.Profile == filesystem.Scratch {
		return invalidField(field, "%s is of profile %s: it has no snapshots and no clones", id, i.Profile)
	}
	return nil
}

// formatOptions is how the volume's file system is made.
func (i identity) formatOptions() filesystem.FormatOptions {
	return filesystem.FormatOptions{Type: i.FSType, UUID: i.FSUUID, DAX: i.DAX, Profile: i.Profile, Settings: i.Settings}
}

// ownUUID gives the file system of a clone its own UUID where the kernel would
// not mount it beside its source otherwise.
func (s *Service) ownUUID(ctx context.Context, v *volume) error {
	i := v.rec.Ident
	if i.Block || i.Snapshot || !filesystem.SharesNoUUID(i.FSType) {
		return ctx.Err()
	}
	device, err := s.lvm.Device(v.group.name, v.rec.ID)
	if err != nil {
		return fmt.Errorf("the new volume's device: %w", err)
	}
	if info, err := s.probe(device.Path); err == nil && info.UUID == i.FSUUID {
		return ctx.Err()
	}
	return errors.Join(s.setUUID(device.Path, i.FSType, i.FSUUID), ctx.Err())
}
