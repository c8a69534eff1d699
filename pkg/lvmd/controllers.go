package lvmd

import (
	"context"
	"fmt"
	"net/netip"

	"google.golang.org/grpc/peer"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
)

// maxControllers bounds the addresses that a replica names: there are two or three replicas, with an
// address of each family.
const maxControllers = 16

// SetControllers implements lvmdv1.LVMDServer. Leadership does not matter for it: every replica calls it.
func (s *Service) SetControllers(ctx context.Context, r *lvmdv1.SetControllersRequest) (*lvmdv1.SetControllersResponse, error) {
	if n := len(r.GetAddresses()); n < 1 || n > maxControllers {
		return nil, apierror.InvalidField("addresses", "%d are not allowed: 1 to %d are", n, maxControllers)
	}
	var addresses []netip.Addr
	for i, text := range r.GetAddresses() {
		address, err := netip.ParseAddr(text)
		if err != nil || address.Zone() != "" || address.IsUnspecified() || address.IsMulticast() {
			return nil, apierror.InvalidField(fmt.Sprintf("addresses[%d]", i), "%.64q is not allowed: an address of a host without zone is", text)
		}
		addresses = append(addresses, address.Unmap())
	}
	if caller, ok := peer.FromContext(ctx); ok && s.named != nil {
		s.named(caller.Addr, addresses)
	}
	return &lvmdv1.SetControllersResponse{}, nil
}
