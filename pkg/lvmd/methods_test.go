//go:build !kernel

package lvmd

import (
	"maps"
	"slices"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

func TestEveryMethodHasATransport(t *testing.T) {
	served := map[string]bool{}
	for service, info := range (&Service{health: newHealth()}).NewServer(Uplink).GetServiceInfo() {
		for _, method := range info.Methods {
			served["/"+service+"/"+method.Name] = true
		}
	}
	if n := len(lvmdv1.LVMD_ServiceDesc.Methods) + len(lvmdv1.LVMD_ServiceDesc.Streams); len(served) <= n {
		t.Fatalf("got %d methods, want the %d of LVMD and those of the health service", len(served), n)
	}
	for _, method := range slices.Sorted(maps.Keys(served)) {
		if methods[method] == "" {
			t.Errorf("%s is served and not in the table methods", method)
		}
	}
	for method := range methods {
		if !served[method] {
			t.Errorf("%s is in the table methods and not served", method)
		}
	}
}
