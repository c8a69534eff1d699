//go:build kernel

package lvm_test

import (
	"fmt"
	"testing"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/must"
)

func TestRAIDVolumesAreRepairedWhateverAKilledExtensionLeft(t *testing.T) {
	group(t, "carve-killed")
	h := host(t)
	found := must.Get(h.Scan(t.Context(), []string{"carve-killed"}))(t)
	layout := layout.Layout{Type: layout.RAID1, Mirrors: 1}
	o := lvm.CreateOptions{Group: "carve-killed", Volume: "cv1", Layout: layout, Extents: 2, On: layout.Place(found[0].Free(), 2)}
	must.Succeed(t, h.Create(t.Context(), o))
	const whole = "carve--killed-cv1"
	for _, killed := range []struct {
		name         string
		do           func()
		inconsistent int
	}{
		{"an image has a table that was not taken into use", func() { load(t, whole+"_rimage_0", 8192) }, 1},
		{"an image is longer", func() {
			load(t, whole+"_rimage_1", 8192)
			dmsetup(t, "suspend", whole+"_rimage_1")
			dmsetup(t, "resume", whole+"_rimage_1")
		}, 1},
		// Its loaded table, longer than the committed one, must never become live.
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
		// Clearing the table before the components are resumed never returns.
		{"all of it is suspended, and it has a table that was not taken into use", func() {
			load(t, whole+"_rimage_1", 8192)
			load(t, whole+"_rimage_0", 8192)
			load(t, whole, 0)
			for _, component := range []string{"", "_rimage_0", "_rmeta_0", "_rimage_1", "_rmeta_1"} {
				dmsetup(t, "suspend", "--noflush", whole+component)
			}
		}, 5},
	} {
		t.Run(killed.name, func(t *testing.T) {
			killed.do()
			if found, err := h.Inconsistent("carve-killed"); err != nil || len(found) != killed.inconsistent {
				t.Errorf("inconsistent: %q, want %d, error %v", found, killed.inconsistent, err)
			}
			must.Succeed(t, h.Repair(t.Context(), "carve-killed", []string{"cv1"}))
			if found, err := h.Inconsistent("carve-killed"); err != nil || len(found) != 0 {
				t.Errorf("left inconsistent: %q, error %v\n%s", found, err, dmsetup(t, "table"))
			}
			dev := must.Get(h.Open("carve-killed", "cv1"))(t)
			defer dev.Close()
			if err := dev.Overwrite(0, dev.Size()); err != nil || dev.Size() != 8<<20 {
				t.Errorf("writing all of its %d bytes: %v", dev.Size(), err)
			}
		})
	}
}
