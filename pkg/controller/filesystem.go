package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
)

// fileSystem is what a StorageClass says of the file system of its volumes.
type fileSystem struct {
	filesystem.Use
	settings filesystem.Settings
	// forAny lets every claim have a scratch file system.
	forAny bool
}

// isFileSystemParameter tells the keys that parseFileSystem reads.
func isFileSystemParameter(key string) bool {
	return key == names.ParamFSType || key == names.ParamProfile || key == names.ParamScratchFor || strings.HasPrefix(key, names.ParamMkfsPrefix)
}

// fileSystemParameters lists those keys for messages.
func fileSystemParameters() []string {
	keys := []string{names.ParamFSType, names.ParamProfile, names.ParamScratchFor}
	var settings []string
	for _, t := range filesystem.Types() {
		for _, name := range filesystem.SettingNames(t) {
			settings = append(settings, names.ParamMkfsPrefix+name)
		}
	}
	slices.Sort(settings)
	return append(keys, slices.Compact(settings)...)
}

// parseFileSystem reads the parameters and the mount options of a StorageClass;
// errors are *InvalidError.
func parseFileSystem(class *storagev1.StorageClass) (fileSystem, error) {
	var out fileSystem
	refuse := func(key, given, allowed string) (fileSystem, error) {
		return fileSystem{}, &InvalidError{Field: classField(class, key), Given: given, Allowed: allowed}
	}
	params := class.Parameters
	t, err := filesystem.ParseType(params[names.ParamFSType])
	if err != nil {
		return refuse(names.ParamFSType, fmt.Sprintf("%q", params[names.ParamFSType]), typeNames())
	}
	out.Type, out.Profile = t, filesystem.Profile(params[names.ParamProfile])
	switch err := out.Check(); {
	case err != nil && t != filesystem.Ext4 && out.Profile == filesystem.Scratch:
		return refuse(names.ParamProfile, fmt.Sprintf("%q with file system %s", out.Profile, t), fmt.Sprintf("%q with %s", out.Profile, filesystem.Ext4))
	case err != nil:
		return refuse(names.ParamProfile, fmt.Sprintf("%q", out.Profile), fmt.Sprintf("%q", filesystem.Scratch))
	}
	switch given := params[names.ParamScratchFor]; given {
	case "", names.ScratchForEphemeral:
	case names.ScratchForAny:
		out.forAny = true
	default:
		return refuse(names.ParamScratchFor, fmt.Sprintf("%q", given), names.ScratchForEphemeral+", "+names.ScratchForAny)
	}
	settings := map[string]string{}
	for key, value := range params {
		if name, ok := strings.CutPrefix(key, names.ParamMkfsPrefix); ok {
			settings[name] = value
		}
	}
	if out.settings, err = filesystem.ParseSettings(out.Use, settings); err != nil {
		return fileSystem{}, refusedSetting(class, err)
	}
	// Which volumes are on persistent memory is known when there is a node.
	_, err = filesystem.MountOptions(out.Use, class.MountOptions)
	if pmem := out.onPMEM(); err != nil && pmem.Check() == nil {
		if _, errOnPMEM := filesystem.MountOptions(pmem, class.MountOptions); errOnPMEM == nil {
			err = nil
		}
	}
	if err != nil {
		return fileSystem{}, refusedMountOption(class, err)
	}
	return out, nil
}

// onPMEM is the use of the same file system on persistent memory.
func (f fileSystem) onPMEM() filesystem.Use {
	use := f.Use
	use.DAX = true
	return use
}

// suits judges a class' file system in the light of the medium of the device
// class on the node that was chosen; errors are *InvalidError.
func (f fileSystem) suits(class *storagev1.StorageClass, on *lvmdv1.DeviceClass) error {
	use := f.Use
	if on.GetMedium() == "pmem" {
		use = f.onPMEM()
	}
	if use.Check() != nil {
		return &InvalidError{Field: classField(class, names.ParamFSType), Given: fmt.Sprintf("%q on persistent memory, as device class %s is,", use.Type, on.GetName()),
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

// suits judges whether a claim may have what its class makes; errors are
// *InvalidError.
func (f fileSystem) suitsClaim(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) error {
	if f.Profile != filesystem.Scratch {
		return nil
	}
	if claim.Spec.DataSource != nil || claim.Spec.DataSourceRef != nil {
		return &InvalidError{Field: "spec.dataSource", Given: fmt.Sprintf("a source, with %s: %s,", names.ParamProfile, f.Profile), Allowed: "none"}
	}
	if f.forAny || isEphemeral(claim) {
		return nil
	}
	return &InvalidError{Field: classField(class, names.ParamProfile), Given: fmt.Sprintf("%q, which loses data in a crash, for a claim that outlives its Pod", f.Profile),
		Allowed: fmt.Sprintf("generic ephemeral volumes (spec.volumes[].ephemeral of a Pod), or any claim with %s: %s", names.ParamScratchFor, names.ScratchForAny)}
}

// isEphemeral tells claims of generic ephemeral volumes, which go with a Pod.
func isEphemeral(claim *v1.PersistentVolumeClaim) bool {
	owner := metav1.GetControllerOf(claim)
	return owner != nil && owner.APIVersion == "v1" && owner.Kind == "Pod"
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
	return &InvalidError{Field: classField(class, names.ParamMkfsPrefix+refused.Name), Given: fmt.Sprintf("%q for %s", value, refused.For), Allowed: refused.Allowed}
}

func refusedMountOption(class *storagev1.StorageClass, err error) error {
	field := fmt.Sprintf("StorageClass %s: mountOptions", class.Name)
	var refused *filesystem.OptionError
	if !errors.As(err, &refused) {
		return &InvalidError{Field: field, Given: "what is there", Allowed: err.Error()}
	}
	return &InvalidError{Field: field, Given: fmt.Sprintf("%q for %s", refused.Given, refused.For), Allowed: refused.Allowed}
}

func typeNames() string {
	var all []string
	for _, t := range filesystem.Types() {
		all = append(all, string(t))
	}
	return strings.Join(all, ", ")
}
