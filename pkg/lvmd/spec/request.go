package spec

import (
	"math"
	"regexp"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/quantity"
)

// maxOwnerLength bounds each of an owner's strings: Kubernetes names have up to 253 characters, and
// LVM's metadata area is small.
const maxOwnerLength = 253

// VolumeName matches the names of volumes and snapshots.
var VolumeName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// FromRequest reads a request, and validates what it can by itself. The class is still as
// requested, and the file system's UUID not yet chosen.
func FromRequest(r *lvmdv1.CreateVolumeRequest) (Identity, error) {
	if !VolumeName.MatchString(r.GetName()) {
		return Identity{}, apierror.InvalidField("name", "%q is not 1 to 128 of [A-Za-z0-9._-]", r.GetName())
	}
	if r.GetRequiredBytes() < 1 {
		return Identity{}, apierror.InvalidField("required_bytes", "%d is not at least 1", r.GetRequiredBytes())
	}
	if r.GetLimitBytes() < 0 {
		return Identity{}, apierror.InvalidField("limit_bytes", "%d is negative; 0 means no limit", r.GetLimitBytes())
	}
	if l := r.GetLimitBytes(); l != 0 && l < r.GetRequiredBytes() {
		return Identity{}, apierror.InvalidField("limit_bytes", "%d is less than required_bytes, %d", l, r.GetRequiredBytes())
	}
	i := Identity{
		Name: r.GetName(), Class: r.GetDeviceClass(), DefaultClass: r.GetDeviceClass() == "",
		Size: Size{Required: r.GetRequiredBytes(), Limit: r.GetLimitBytes()}, Owner: OwnerFrom(r.GetOwner()),
	}
	if r.GetSource() != nil {
		var err error
		if i.Source, err = sourceOf(r.GetSource()); err != nil {
			return Identity{}, err
		}
	}
	if err := i.parseEncryption(r); err != nil {
		return Identity{}, err
	}
	if err := i.Owner.Check(); err != nil {
		return Identity{}, err
	}
	switch r.GetMode() {
	case lvmdv1.VolumeMode_VOLUME_MODE_BLOCK:
		if r.GetFsType() != "" {
			return Identity{}, apierror.InvalidField("fs_type", "%q given for a BLOCK volume; it must be empty", r.GetFsType())
		}
		if r.GetProfile() != "" || len(r.GetFsSettings()) > 0 {
			return Identity{}, apierror.InvalidField("profile", "profile %q or fs_settings given for a BLOCK volume; they must be empty", r.GetProfile())
		}
		i.Block = true
	case lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM:
		if err := i.parseFormat(r); err != nil {
			return Identity{}, err
		}
	default:
		return Identity{}, apierror.InvalidField("mode", "%v is not allowed; it must be FILESYSTEM or BLOCK", r.GetMode())
	}
	return i, nil
}

// Extents returns the extents of a volume with this identity: the required size, or the file
// system's minimum, rounded up.
func (i Identity) Extents(extentSize int64) (int64, error) {
	want := max(i.Required, i.AtLeast)
	if !i.Block {
		want = max(want, filesystem.MinimumSize(i.FSType, i.DAX))
	}
	return i.ExtentsWithin(want, i.Limit, extentSize)
}

// ExtentsWithin adds the header to a size, rounds up to extents, and checks the usable size against
// limit, unless that is zero.
func (i Identity) ExtentsWithin(want, limit, extentSize int64) (int64, error) {
	n, ok := layout.ExtentsFor(min(want, math.MaxInt64-i.HeaderBytes())+i.HeaderBytes(), extentSize)
	if !ok {
		return 0, apierror.NoSpace("%s are more than any volume group has", quantity.Bytes(want))
	}
	if got := n*extentSize - i.HeaderBytes(); limit > 0 && got > limit {
		return 0, apierror.SizeOutOfRange("the smallest volume that holds %s has %s (extents have %s), more than limit_bytes, %s",
			quantity.Bytes(want), quantity.Bytes(got), quantity.Bytes(extentSize), quantity.Bytes(limit))
	}
	return n, nil
}
