//go:build kernel

package lvmd_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/waittest"
)

// A claim still gets a volume when inline volumes have reached half. The pool leaves too little
// for raid6.
func TestInlineVolumesHaveHalfOfAClass(t *testing.T) {
	n := newNode(t, spares(t, 108, 100, 112, 120, 104)...)
	n.config = layoutClasses() + "- {name: thin, volumeGroup: carve, type: thin, thin: {pool: carve-pool, size: 48Mi, overprovisioning: 1}}\n"
	p := n.start()
	for _, name := range append([]string{"thin"}, layoutNames[:5]...) {
		t.Run(name, func(t *testing.T) {
			class := p.classNamed(name)
			unit := class.GetAllocationUnitBytes()
			inline := func(id string, bytes int64) *lvmdv1.Volume {
				r := inClass(create(id, bytes, ""), name)
				r.Owner = &lvmdv1.Owner{PodNamespace: "ns", PodName: "pod", PodUid: "uid"}
				got, err := p.client.CreateVolume(t.Context(), r)
				if err != nil && (status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "raise inlinePercent of device class")) {
					t.Fatalf("%d bytes: %v", bytes, err)
				}
				return got.GetVolume()
			}
			var made []string
			var taken int64
			for bytes := class.GetMaximumVolumeSizeBytes(); bytes >= unit; {
				bytes = min(bytes, p.classNamed(name).GetMaximumVolumeSizeBytes())
				if v := inline(fmt.Sprint("csi-", name, len(made)), bytes); v != nil {
					made, taken = append(made, v.GetId()), taken+v.GetSizeBytes()
				} else {
					bytes -= unit
				}
			}
			if half := class.GetTotalBytes() / 2; taken > half || taken <= half-unit {
				t.Errorf("%d inline volumes have %d of %d bytes", len(made), taken, class.GetTotalBytes())
			}
			claims := p.create(inClass(create("pvc-"+name, p.classNamed(name).GetMaximumVolumeSizeBytes(), ""), name))
			for _, id := range append(made, claims.GetId()) {
				p.delete(id)
			}
			whole := func() bool { return p.classNamed(name).GetAvailableBytes() == class.GetAvailableBytes() }
			waittest.Until(t, "the space is back", whole)
			p.delete(inline("csi-again", unit).GetId())
			waittest.Until(t, "the space is back again", whole)
		})
	}
}
