package lvmd

import (
	"context"

	grpchealth "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
)

// health serves the gRPC health service: SERVING while LVM answers for every volume group.
type health struct {
	server *grpchealth.Server
}

func newHealth() *health {
	h := &health{server: grpchealth.NewServer()}
	h.set(true)
	return h
}

func (h *health) set(serving bool) {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if serving {
		status = healthpb.HealthCheckResponse_SERVING
	}
	h.server.SetServingStatus("", status)
	h.server.SetServingStatus(lvmdv1.LVMD_ServiceDesc.ServiceName, status)
}

// Ready returns an error while the service stops, or LVM does not answer.
func (s *Service) Ready(context.Context) error {
	if s.isStopping() {
		return apierror.ErrStopping
	}
	return s.inventory.Responding(nil)
}
