package spec

import (
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
)

// FileSystem holds a StorageClass's file system parameters.
type FileSystem struct {
	filesystem.Use
	settings filesystem.Settings
}

func isFileSystemParameter(key string) bool {
	return key == names.ParamFSType || key == names.ParamProfile || strings.HasPrefix(key, names.ParamMkfsPrefix)
}

func parseFileSystem(class *storagev1.StorageClass) (FileSystem, error) {
	var out FileSystem
	refuse := func(key, given, allowed string) (FileSystem, error) {
		return FileSystem{}, &InvalidError{Field: ClassField(class, key), Given: given, Allowed: allowed}
	}
	params := class.Parameters
	t, err := filesystem.ParseType(params[names.ParamFSType])
	if err != nil {
		return refuse(names.ParamFSType, fmt.Sprintf("%q", params[names.ParamFSType]), strings.Join(typeWords(), ", "))
	}
	out.Type, out.Profile = t, filesystem.Profile(params[names.ParamProfile])
	switch err := out.Check(); {
	case err != nil && t != filesystem.Ext4 && out.Profile == filesystem.Scratch:
		return refuse(names.ParamProfile, fmt.Sprintf("%q with file system %s", out.Profile, t), fmt.Sprintf("%q with %s", out.Profile, filesystem.Ext4))
	case err != nil:
		return refuse(names.ParamProfile, fmt.Sprintf("%q", out.Profile), fmt.Sprintf("%q", filesystem.Scratch))
	}
	settings := map[string]string{}
	for key, value := range params {
		if name, ok := strings.CutPrefix(key, names.ParamMkfsPrefix); ok {
			settings[name] = value
		}
	}
	if out.settings, err = filesystem.ParseSettings(out.Use, settings); err != nil {
		return FileSystem{}, refusedSetting(class, err)
	}
	// Only the node determines which volumes are on persistent memory.
	_, err = filesystem.MountOptions(out.Use, class.MountOptions)
	if pmem := out.onPMEM(); err != nil && pmem.Check() == nil {
		if _, errOnPMEM := filesystem.MountOptions(pmem, class.MountOptions); errOnPMEM == nil {
			err = nil
		}
	}
	if err != nil {
		return FileSystem{}, refusedMountOption(class, err)
	}
	return out, nil
}

func (f FileSystem) onPMEM() filesystem.Use {
	use := f.Use
	use.DAX = true
	return use
}

// Suits checks the file system of a StorageClass against the medium of the device class on the
// selected node. Errors are *InvalidError.
func (f FileSystem) Suits(class *storagev1.StorageClass, on *lvmdv1.DeviceClass) error {
	use := f.Use
	if on.GetMedium() == "pmem" {
		use = f.onPMEM()
	}
	if use.Check() != nil {
		return &InvalidError{Field: ClassField(class, names.ParamFSType), Given: fmt.Sprintf("%q on persistent memory, as device class %s is,", use.Type, on.GetName()),
			Allowed: fmt.Sprintf("%s, %s", filesystem.Ext4, filesystem.XFS)}
	}
	if _, err := filesystem.ParseSettings(use, f.settings.Map()); err != nil {
		return refusedSetting(class, err)
	}
	if _, err := filesystem.MountOptions(use, class.MountOptions); err != nil {
		return refusedMountOption(class, err)
	}
	return nil
}

func (f FileSystem) suitsClaim(claim *v1.PersistentVolumeClaim) error {
	if f.Profile == filesystem.Scratch && (claim.Spec.DataSource != nil || claim.Spec.DataSourceRef != nil) {
		return &InvalidError{Field: "spec.dataSource", Given: fmt.Sprintf("a source, with %s: %s,", names.ParamProfile, f.Profile), Allowed: "none"}
	}
	return nil
}

// suitsBlock rejects raw block volumes of a class that sets the owner or mode of the root
// directory, which they lack.
func (f FileSystem) suitsBlock(class *storagev1.StorageClass) error {
	for _, name := range []string{filesystem.SettingRootOwner, filesystem.SettingRootMode} {
		if value, set := f.settings.Map()[name]; set {
			return &InvalidError{Field: ClassField(class, names.ParamMkfsPrefix+name), Given: fmt.Sprintf("%q for a raw block volume, which has no root directory,", value),
				Allowed: "volumeMode Filesystem"}
		}
	}
	return nil
}

func refusedSetting(class *storagev1.StorageClass, err error) error {
	var refused *filesystem.OptionError
	if !errors.As(err, &refused) {
		return err
	}
	value, given := strings.CutPrefix(refused.Given, refused.Name+"=")
	if !given {
		return &InvalidError{Field: fmt.Sprintf("StorageClass %s: parameters", class.Name), Given: fmt.Sprintf("key %q for %s", names.ParamMkfsPrefix+refused.Name, refused.For),
			Allowed: names.ParamMkfsPrefix + "(" + refused.Allowed + ")"}
	}
	return &InvalidError{Field: ClassField(class, names.ParamMkfsPrefix+refused.Name), Given: fmt.Sprintf("%q for %s", value, refused.For), Allowed: refused.Allowed}
}

func refusedMountOption(class *storagev1.StorageClass, err error) error {
	field := fmt.Sprintf("StorageClass %s: mountOptions", class.Name)
	var refused *filesystem.OptionError
	if !errors.As(err, &refused) {
		return &InvalidError{Field: field, Given: "what is there", Allowed: err.Error()}
	}
	return &InvalidError{Field: field, Given: fmt.Sprintf("%q for %s", refused.Given, refused.For), Allowed: refused.Allowed}
}
