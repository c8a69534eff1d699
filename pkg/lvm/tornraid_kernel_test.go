//go:build kernel

package lvm_test

import (
	"fmt"
	"testing"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/must"
)

func TestRAIDVolumesAreMendedWhateverAKilledExtensionLeft(t *testing.T) {
	group(t, "carve-torn")
	h := host(t)
	found := must.Get(h.Scan(t.Context(), []string{"carve-torn"}))(t)
	layout := lvm.Layout{Type: lvm.RAID1, Mirrors: 1}
	o := lvm.CreateOptions{Group: "carve-torn", Volume: "cv1", Layout: layout, Extents: 2, On: layout.Place(found[0].Free(), 2)}
	must.Succeed(t, h.Create(t.Context(), o))
	const whole = "carve--torn-cv1"
	for _, tear := range []struct {
		name string
		do   func()
		torn int
	}{
		{"an image has a table that was not taken into use", func() { load(t, whole+"_rimage_0", 8192) }, 1},
		{"an image is longer", func() {
			load(t, whole+"_rimage_1", 8192)
			dmsetup(t, "suspend", whole+"_rimage_1")
			dmsetup(t, "resume", whole+"_rimage_1")
		}, 1},
		// Its loaded table must never come into use: it is longer than what is committed.
		{"its images are longer, and it is suspended with a table that was not taken into use", func() {
			for i := range 2 {
				image := fmt.Sprintf("%s_rimage_%d", whole, i)
				load(t, image, 8192)
				dmsetup(t, "suspend", image)
				dmsetup(t, "resume", image)
			}
			load(t, whole, 8192)
			dmsetup(t, "suspend", "--noflush", whole)
		}, 3},
		// Dropping the table before its parts are resumed never returns.
		{"all of it is suspended, and it has a table that was not taken into use", func() {
			load(t, whole+"_rimage_1", 8192)
			load(t, whole+"_rimage_0", 8192)
			load(t, whole, 0)
			for _, part := range []string{"", "_rimage_0", "_rmeta_0", "_rimage_1", "_rmeta_1"} {
				dmsetup(t, "suspend", "--noflush", whole+part)
			}
		}, 5},
	} {
		t.Run(tear.name, func(t *testing.T) {
			tear.do()
			if torn, err := h.Torn("carve-torn"); err != nil || len(torn) != tear.torn {
				t.Errorf("torn: %q, want %d, error %v", torn, tear.torn, err)
			}
			must.Succeed(t, h.Mend(t.Context(), "carve-torn", []string{"cv1"}))
			if torn, err := h.Torn("carve-torn"); err != nil || len(torn) != 0 {
				t.Errorf("left torn: %q, error %v\n%s", torn, err, dmsetup(t, "table"))
			}
			dev := must.Get(h.Open("carve-torn", "cv1"))(t)
			defer dev.Close()
			if err := dev.Overwrite(0, dev.Size()); err != nil || dev.Size() != 8<<20 {
				t.Errorf("writing all of its %d bytes: %v", dev.Size(), err)
			}
		})
	}
}
