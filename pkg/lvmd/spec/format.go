package spec

import (
	"fmt"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
)

// parseFormat sets the file system's fields, and checks what it can without the class.
func (i *Identity) parseFormat(r *lvmdv1.CreateVolumeRequest) error {
	t, err := filesystem.ParseType(r.GetFsType())
	if err != nil {
		return apierror.InvalidField("fs_type", "%v", err)
	}
	i.FSType, i.Profile = t, filesystem.Profile(r.GetProfile())
	if err := i.checkLUKS(); err != nil {
		return err
	}
	if i.Profile != filesystem.Usual && i.Source != "" {
		return apierror.InvalidField("profile", "%q given together with a source; what is made of another volume keeps its file system", i.Profile)
	}
	if err := i.use().Check(); err != nil {
		return apierror.InvalidField("profile", "%v", err)
	}
	if i.Settings, err = filesystem.ParseSettings(i.use(), r.GetFsSettings()); err != nil {
		return apierror.InvalidField("fs_settings", "%v", err)
	}
	return nil
}

func (i Identity) use() filesystem.Use {
	return filesystem.Use{Type: i.FSType, DAX: i.DAX, Profile: i.Profile}
}

// CheckMedium checks the file system against the class, once that is known.
func (i Identity) CheckMedium() error {
	if i.Block || !i.DAX {
		return nil
	}
	if err := i.use().Check(); err != nil {
		return apierror.InvalidField("fs_type", "%v", err)
	}
	if _, err := filesystem.ParseSettings(i.use(), i.Settings.Map()); err != nil {
		return apierror.InvalidField("fs_settings", "%v", err)
	}
	return nil
}

// CheckSectors checks the file system's settings against the disks' sector size in bytes.
func (i Identity) CheckSectors(sector int64) error {
	if i.Block || i.Source != "" {
		return nil
	}
	if err := i.Settings.CheckSectors(i.FSType, sector); err != nil {
		return apierror.FormatRefused(string(i.Settings), fmt.Errorf("%w; correct the parameter %s%s", err, names.ParamMkfsPrefix, filesystem.SettingBlockSize))
	}
	return nil
}

// CheckSource checks that the volume can be a source. A scratch file system that was not unmounted
// cleanly looks as if it must be reformatted, and so would its clones.
func (i Identity) CheckSource(field, id string) error {
	if i.Profile == filesystem.Scratch {
		return apierror.InvalidField(field, "%s is of profile %s: it has no snapshots and no clones", id, i.Profile)
	}
	return nil
}

// FormatOptions returns the options of mkfs.
func (i Identity) FormatOptions() filesystem.FormatOptions {
	return filesystem.FormatOptions{Type: i.FSType, UUID: i.FSUUID, DAX: i.DAX, Profile: i.Profile, Settings: i.Settings}
}
