//go:build !kernel

package lvmd

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/must"
)

func TestOnlyAddressesThatAreNamedOverTheUplinkAreTaken(t *testing.T) {
	var taken []string
	d := newMachine(t).start(t, func(_ *daemon, o *Options) {
		o.Named = func(from net.Addr, addresses []netip.Addr) { taken = append(taken, fmt.Sprint(from, addresses)) }
	})
	r := &lvmdv1.SetControllersRequest{Addresses: []string{"10.0.0.1", "fd00::1", "::ffff:10.0.0.2"}}
	_, err := d.client.SetControllers(t.Context(), r)
	wantCode(t, err, codes.PermissionDenied, names.ReasonWrongTransport)
	uplink := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 9), Port: 9443}})
	must.Get(d.SetControllers(uplink, r))(t)
	if want := "10.0.0.9:9443 [10.0.0.1 fd00::1 10.0.0.2]"; len(taken) != 1 || taken[0] != want {
		t.Errorf("taken: %q, want %q", taken, want)
	}
	for field, list := range map[string][]string{
		"addresses:":    nil,
		"addresses: 17": strings.Fields(strings.Repeat("10.0.0.1 ", 17)),
		"addresses[0]":  {"carve-uplink.carve-system.svc"},
		"addresses[1]":  {"10.0.0.1", "10.0.0.1:9443"},
		"addresses[2]":  {"10.0.0.1", "fd00::1", "fe80::1%eth0"},
		"addresses[3]":  {"10.0.0.1", "fd00::1", "10.0.0.2", "0.0.0.0"},
		"addresses[4]":  {"10.0.0.1", "fd00::1", "10.0.0.2", "10.0.0.3", "ff02::1"},
	} {
		_, err := d.SetControllers(uplink, &lvmdv1.SetControllersRequest{Addresses: list})
		wantCode(t, err, codes.InvalidArgument, names.ReasonInvalidField)
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%q are refused with %v, want %s named", list, err, field)
		}
	}
}
