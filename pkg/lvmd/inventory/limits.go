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

// Modifiable returns a volume whose limits can be changed now. Other operations may have it
// meanwhile: the group's slot keeps LVM's commands apart.
func (m *Inventory) Modifiable(id string) (*Volume, error) {
	m.lock()
	defer m.unlock()
	v, err := m.lookup(id, "", false)
	if err != nil {
		return nil, err
	}
	return v, v.checkModifiable()
}

func (v *Volume) checkModifiable() error {
	switch {
	case v.rec.Phase != spec.Ready:
		return apierror.OperationPending("volume %s is being created or deleted", v.rec.ID)
	case !v.group.isUsable():
		return apierror.DeviceMissing("volume group %q, or a device of it, is missing", v.group.name)
	}
	return nil
}

// LimitTags returns the tags about limits that a volume has. It is an error if they cannot be
// changed now.
func (v *Volume) LimitTags() ([]string, error) {
	m := v.group.m
	m.lock()
	defer m.unlock()
	return slices.Clone(v.limitTags), v.checkModifiable()
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
