package inventory

import (
	"slices"

	"github.com/carve-csi/carve/pkg/iolimit"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// volumeLimits are limits of I/O. Only the tags in LVM's metadata keep them.
type volumeLimits struct {
	limits    iolimit.Limits
	limitTags []string
}

// LimitTags returns the volume's tags about limits, or an error if they cannot change now. Another
// operation may have the volume: the group's slot serializes LVM's commands.
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

// Limited is the effect of the command that changes the limits of a volume.
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
