package inventory

import (
	"slices"

	"github.com/carve-csi/carve/pkg/iolimit"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// volumeLimits are the limits of a volume's I/O, and the tags that say so in LVM's metadata, which
// alone keeps them.
type volumeLimits struct {
	limits    iolimit.Limits
	limitTags []string
}

// LimitTags returns the tags about limits that a volume has. It is an error if they cannot be
// changed now. Other operations may have the volume: the group's slot keeps LVM's commands apart.
func (v *Volume) LimitTags() ([]string, error) {
	m := v.group.m
	m.lock()
	defer m.unlock()
	tags := slices.Clone(v.limitTags)
	switch {
	case v.rec.Phase != spec.Ready:
		return tags, apierror.OperationPending("volume %s is being created or deleted", v.rec.ID)
	case !v.group.isUsable():
		return tags, apierror.DeviceMissing("volume group %q, or a device of it, is missing", v.group.name)
	}
	return tags, nil
}

type limited struct {
	unknown
	v *Volume
	volumeLimits
}

// Limited is the effect of the command that gave a volume other limits.
func Limited(v *Volume, limits iolimit.Limits) Effect {
	return limited{v: v, volumeLimits: limitsOf(limits)}
}

func (e limited) apply(*model) []*Volume {
	e.v.volumeLimits = e.volumeLimits
	return []*Volume{e.v}
}

func limitsOf(limits iolimit.Limits) volumeLimits {
	return volumeLimits{limits, spec.LimitTags(limits)}
}
