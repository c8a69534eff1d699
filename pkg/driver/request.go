package driver

import (
	"regexp"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/csierror"
	"github.com/carve-csi/carve/pkg/filesystem"
)

// volumeIDs accepts more than lvmd generates: an unknown volume gets NotFound,
// and only a harmful id InvalidArgument.
var volumeIDs = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

func checkVolumeID(id string) error {
	switch {
	case id == "":
		return csierror.Invalid("volume_id", "a value is required")
	case !volumeIDs.MatchString(id):
		return csierror.Invalid("volume_id", "%.140q is not allowed: 1 to 128 characters of [A-Za-z0-9._-] are", id)
	}
	return nil
}

type capability struct {
	block bool
	// readOnly means that no Pod writes, by access mode or mount option.
	readOnly bool
	// exclusive allows one target path at a time.
	exclusive bool
	fsType    string
	flags     []string
}

func checkCapability(c *csi.VolumeCapability) (capability, error) {
	const field = "volume_capability"
	if c == nil {
		return capability{}, csierror.Invalid(field, "a value is required")
	}
	var k capability
	switch c.GetAccessMode().GetMode() {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		k.exclusive = true
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:
		k.readOnly = true
	default:
		return capability{}, csierror.Invalid(field+".access_mode", "%s is not supported: a volume is used on one node, "+
			"ReadWriteOnce and ReadWriteOncePod are", c.GetAccessMode().GetMode())
	}
	switch {
	case c.GetBlock() != nil:
		k.block = true
	case c.GetMount() != nil:
		m := c.GetMount()
		k.fsType, k.flags = m.GetFsType(), m.GetMountFlags()
		k.readOnly = k.readOnly || readOnlyFlags(k.flags)
		if m.GetVolumeMountGroup() != "" {
			return capability{}, csierror.Invalid(field+".mount.volume_mount_group", "it is left to the kubelet: no value is allowed")
		}
		if k.fsType != "" {
			if _, err := filesystem.ParseType(k.fsType); err != nil {
				return capability{}, csierror.Invalid(field+".mount.fs_type", "%w", err)
			}
		}
	default:
		return capability{}, csierror.Invalid(field+".access_type", "a value is required: block or mount")
	}
	return k, nil
}

func readOnlyFlags(flags []string) bool {
	for _, o := range slices.Backward(filesystem.SplitOptions(strings.Join(flags, ","))) {
		if o == "ro" || o == "rw" {
			return o == "ro"
		}
	}
	return false
}

func (k capability) fits(v *lvmdv1.Volume) error {
	const field = "volume_capability"
	block := v.GetMode() == lvmdv1.VolumeMode_VOLUME_MODE_BLOCK
	switch {
	case k.block && !block:
		return csierror.Invalid(field, "block access to volume %s is not allowed: it was created with a file system", v.GetId())
	case !k.block && block:
		return csierror.Invalid(field, "mount access to volume %s is not allowed: it was created as a raw block device", v.GetId())
	case k.fsType != "" && k.fsType != v.GetFsType():
		return csierror.Invalid(field+".mount.fs_type", "%q is not allowed: volume %s has %s", k.fsType, v.GetId(), v.GetFsType())
	}
	return nil
}
