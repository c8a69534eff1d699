package spec

import (
	"fmt"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
)

// parseFormat takes what a request says about the file system into the
// identity, as far as it can be checked without the class.
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

// use is what the volume's file system is made for.
func (i Identity) use() filesystem.Use {
	return filesystem.Use{Type: i.FSType, DAX: i.DAX, Profile: i.Profile}
}

// CheckMedium checks the file system against the class that was found.
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

// CheckSectors checks the settings of the file system against the disks' sectors, of so
// many bytes.
func (i Identity) CheckSectors(sector int64) error {
	if i.Block || i.Source != "" {
		return nil
	}
	if err := i.Settings.CheckSectors(i.FSType, sector); err != nil {
		return apierror.FormatRefused(string(i.Settings), fmt.Errorf("%w; correct the parameter %s%s", err, names.ParamMkfsPrefix, filesystem.SettingBlockSize))
	}
	return nil
}

// CheckSource checks that something can be made of the volume. A scratch file
// system that was not taken off looks as one that is to be reformatted, and so
// would its clones.
func (i Identity) CheckSource(field, id string) error {
	if i.Profile == filesystem.Scratch {
		return apierror.InvalidField(field, "%s is of profile %s: it has no snapshots and no clones", id, i.Profile)
	}
	return nil
}

// FormatOptions is how the volume's file system is made.
func (i Identity) FormatOptions() filesystem.FormatOptions {
	return filesystem.FormatOptions{Type: i.FSType, UUID: i.FSUUID, DAX: i.DAX, Profile: i.Profile, Settings: i.Settings}
}
