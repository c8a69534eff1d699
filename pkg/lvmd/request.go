package lvmd

import (
	"math"
	"regexp"
	"strings"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm"
)

// maxOwnerLength bounds each of an owner's strings: Kubernetes names have up
// to 253 characters, and tags live in a small metadata area.
const maxOwnerLength = 253

var volumeName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// identityFor validates a request as far as it can be judged alone. The class
// is still as asked for, and the file system's UUID not yet chosen.
func identityFor(r *lvmdv1.CreateVolumeRequest) (identity, error) {
	if !volumeName.MatchString(r.GetName()) {
		return identity{}, invalidField("name", "%q is not 1 to 128 of [A-Za-z0-9._-]", r.GetName())
	}
	if r.GetRequiredBytes() < 1 {
		return identity{}, invalidField("required_bytes", "%d is not at least 1", r.GetRequiredBytes())
	}
	if r.GetLimitBytes() < 0 {
		return identity{}, invalidField("limit_bytes", "%d is negative; 0 means no limit", r.GetLimitBytes())
	}
	if l := r.GetLimitBytes(); l != 0 && l < r.GetRequiredBytes() {
		return identity{}, invalidField("limit_bytes", "%d is less than required_bytes, %d", l, r.GetRequiredBytes())
	}
	i := identity{
		Name: r.GetName(), Class: r.GetDeviceClass(), DefaultClass: r.GetDeviceClass() == "",
		Required: r.GetRequiredBytes(), Limit: r.GetLimitBytes(), Owner: ownerOf(r.GetOwner()),
	}
	if r.GetSource() != nil {
		var err error
		if i.Source, err = sourceOf(r.GetSource()); err != nil {
			return identity{}, err
		}
	}
	if err := i.readEncryption(r); err != nil {
		return identity{}, err
	}
	if err := i.Owner.check(); err != nil {
		return identity{}, err
	}
	switch r.GetMode() {
	case lvmdv1.VolumeMode_VOLUME_MODE_BLOCK:
		if r.GetFsType() != "" {
			return identity{}, invalidField("fs_type", "%q given for a BLOCK volume; it must be empty", r.GetFsType())
		}
		if r.GetProfile() != "" || len(r.GetFsSettings()) > 0 {
			return identity{}, invalidField("profile", "profile %q or fs_settings given for a BLOCK volume; they must be empty", r.GetProfile())
		}
		i.Block = true
	case lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM:
		if err := i.readFormat(r); err != nil {
			return identity{}, err
		}
	default:
		return identity{}, invalidField("mode", "%v is not allowed; it must be FILESYSTEM or BLOCK", r.GetMode())
	}
	return i, nil
}

// extentsFor is how many extents a volume with this identity gets: what was
// required and what the file system needs, rounded up.
func (i identity) extentsFor(extentSize int64) (int64, error) {
	want := max(i.Required, i.atLeast)
	if !i.Block {
		want = max(want, filesystem.MinimumSize(i.FSType, i.DAX))
	}
	return i.extentsWithin(want, i.Limit, extentSize)
}

// extentsWithin rounds a size, and what the volume needs besides, up to extents
// and checks what its user gets against a limit, of which zero is none.
func (i identity) extentsWithin(want, limit, extentSize int64) (int64, error) {
	n, ok := lvm.ExtentsFor(min(want, math.MaxInt64-i.headerBytes())+i.headerBytes(), extentSize)
	if !ok {
		return 0, noSpace("%d bytes are more than any volume group has", want)
	}
	if got := n*extentSize - i.headerBytes(); limit > 0 && got > limit {
		return 0, sizeOutOfRange("the smallest volume that holds %d bytes has %d bytes (extents have %d), more than limit_bytes, %d",
			want, got, extentSize, limit)
	}
	return n, nil
}

// lookup finds a volume by exactly one of id and name. The caller holds the
// model's lock. Tombstones are not found.
func (m *model) lookup(id, name string) (*volume, error) {
	switch {
	case id == "" && name == "":
		return nil, invalidField("id", "neither id nor name is set; exactly one must be")
	case id != "" && name != "":
		return nil, invalidField("id", "id and name are both set; exactly one must be")
	case name != "":
		if v := m.names[name]; v != nil {
			return v, nil
		}
		return nil, volumeNotFound(name)
	}
	if v := m.volumes[id]; v != nil && v.rec.Phase != deleting && !v.rec.Ident.Snapshot {
		return v, nil
	}
	return nil, volumeNotFound(id)
}

// classNames lists the offered classes for messages. The caller holds the
// model's lock.
func (m *model) classNames() string {
	var offered []string
	for _, c := range m.classes {
		if c.reported != nil {
			offered = append(offered, c.Name)
		}
	}
	if len(offered) == 0 {
		return "this node offers none"
	}
	return "this node offers " + strings.Join(offered, ", ")
}

// clampPage turns a page size into a count.
func clampPage(n int32) int {
	if n == 0 {
		return math.MaxInt
	}
	return int(n)
}
