package lvmd

import (
	"context"
	"fmt"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

const (
	// maxReservations bounds a cluster's reservations: many times what claims that wait on
	// one node are, and little work for each volume of a Pod.
	maxReservations = 1000
	// reservationsLast is for how long reservations count that the controller does not
	// report again.
	reservationsLast = 5 * time.Minute
)

// SetReservations implements lvmdv1.LVMDServer.
func (s *Service) SetReservations(_ context.Context, r *lvmdv1.SetReservationsRequest) (*lvmdv1.SetReservationsResponse, error) {
	if n := len(r.GetReservations()); n > maxReservations {
		return nil, apierror.InvalidField("reservations", "%d are not allowed: at most %d are", n, maxReservations)
	}
	var volumes []spec.Identity
	for i, reserved := range r.GetReservations() {
		if reserved.GetName() == "" {
			return nil, apierror.InvalidField(fmt.Sprintf("reservations[%d].name", i), "a name is required")
		}
		if reserved.GetRequiredBytes() < 1 {
			return nil, apierror.InvalidField(fmt.Sprintf("reservations[%d].required_bytes", i), "%d is not allowed: at least 1 is", reserved.GetRequiredBytes())
		}
		volumes = append(volumes, spec.Identity{
			Name: reserved.GetName(), Class: reserved.GetDeviceClass(), Block: true, Size: spec.Size{Required: reserved.GetRequiredBytes()},
		})
	}
	s.inventory.SetReservations(r.GetClusterId(), volumes, time.Now().Add(s.reservationsLast))
	return &lvmdv1.SetReservationsResponse{}, nil
}
