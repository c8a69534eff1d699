//go:build kernel

package lvmd_test

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/uplink"
	"github.com/carve-csi/carve/pkg/uplink/uplinktest"
	"github.com/carve-csi/carve/pkg/waittest"
)

// The largest volume that a Pod can define beside what a claim has reserved is made, and LVM
// makes the claim's volume all the same.
func TestVolumesOfPodsLeaveWhatClaimsHaveReservedInEveryLayout(t *testing.T) {
	n := newNode(t, spares(t, 108, 100, 112, 120, 104)...)
	n.config = layoutClasses() + "- {name: thin, volumeGroup: carve, type: thin, thin: {pool: carve-pool, size: 48Mi, overprovisioning: 1}}\n"
	sessions := make(chan *uplink.Session, 1)
	network := must.Get(uplinktest.NewNetwork(t.TempDir(), func(s *uplink.Session) { sessions <- s }))(t)
	t.Cleanup(network.Close)
	n.flags = network.Flags()
	p := n.start()
	controller := lvmdv1.NewLVMDClient(<-sessions)
	all := p.available()
	for _, name := range append([]string{"thin"}, layoutNames...) {
		t.Run(name, func(t *testing.T) {
			class := p.classNamed(name)
			largest, unit := class.GetMaximumVolumeSizeBytes(), class.GetAllocationUnitBytes()
			reserved := largest / 2 / unit * unit
			must.Get(controller.SetReservations(t.Context(), &lvmdv1.SetReservationsRequest{ClusterId: "cluster",
				Reservations: []*lvmdv1.Reservation{{Name: "pvc-" + name, DeviceClass: name, RequiredBytes: reserved}}}))(t)
			inline := func(bytes int64) (*lvmdv1.Volume, error) {
				r := inClass(create("csi-"+name, bytes, ""), name)
				r.Owner = &lvmdv1.Owner{PodNamespace: "ns", PodName: "pod", PodUid: "uid"}
				got, err := p.client.CreateVolume(t.Context(), r)
				return got.GetVolume(), err
			}
			var made *lvmdv1.Volume
			bytes := largest
			for ; made == nil && bytes > 0; bytes -= unit {
				v, err := inline(bytes)
				if err != nil && status.Code(err) != codes.ResourceExhausted {
					t.Fatal(err)
				}
				made = v
			}
			if made == nil || made.GetSizeBytes() == largest {
				t.Fatalf("beside %d reserved of %d bytes the Pod gets %v", reserved, largest, made)
			}
			claims := p.create(inClass(create("pvc-"+name, reserved, ""), name))
			if claims.GetSizeBytes() != reserved {
				t.Errorf("the claim gets %d bytes of %d", claims.GetSizeBytes(), reserved)
			}
			p.delete(made.GetId())
			p.delete(claims.GetId())
			waittest.Until(t, "the space is back", func() bool { return p.available() == all })
		})
	}
}
