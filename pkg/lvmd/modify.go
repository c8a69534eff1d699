package lvmd

import (
	"context"
	"slices"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/iolimit"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/lvmd/volumegroup"
)

// ModifyVolume implements lvmdv1.LVMDServer. LVM's commit is its only effect, and a retry finds
// it done. The group's exclusive slot orders the calls for one volume: the last one counts.
func (s *Service) ModifyVolume(ctx context.Context, r *lvmdv1.ModifyVolumeRequest) (*lvmdv1.ModifyVolumeResponse, error) {
	limits, err := spec.Limits(r.GetIoLimits())
	if err != nil {
		return nil, err
	}
	if r.GetId() == "" {
		return nil, apierror.InvalidField("id", "it is empty")
	}
	release, err := s.admit()
	if err != nil {
		return nil, err
	}
	v, _, err := s.inventory.ReadVolume(r.GetId(), "")
	release()
	if err != nil {
		return nil, err
	}
	if err := s.setLimits(ctx, v, limits); err != nil {
		return nil, apierror.From("modifying volume "+r.GetId(), err)
	}
	return &lvmdv1.ModifyVolumeResponse{Volume: v.Report()}, nil
}

func (c *core) setLimits(ctx context.Context, v *inventory.Volume, limits iolimit.Limits) error {
	want := spec.LimitTags(limits)
	if old, err := v.LimitTags(); err != nil || slices.Equal(old, want) {
		return err
	}
	g := c.groups.Of(v)
	return c.groups.Change(onBehalfOf(ctx, v), g, func(ctx context.Context) (inventory.Effect, error) {
		old, err := v.LimitTags()
		if err != nil || slices.Equal(old, want) { // A concurrent call may have set them.
			return nil, err
		}
		return inventory.Limited(v, limits), c.lvm.Retag(volumegroup.ForClassOf(ctx, v), g.Name(), v.ID(), old, want)
	})
}
