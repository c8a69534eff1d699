//go:build !kernel

package inventory

import (
	"strings"
	"testing"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
)

func TestWhichLogicalVolumesOfOthersAClassTakes(t *testing.T) {
	linear := config.DeviceClass{Name: "linear", Type: config.Linear}
	mirrored := config.DeviceClass{Name: "mirrored", Type: config.RAID1, Measures: config.Measures{Mirrors: 1}}
	all := config.DeviceClass{Name: "all", Type: config.Striped, Measures: config.Measures{Stripes: config.AllDevices}}
	thin := config.DeviceClass{Name: "thin", Type: config.Thin, Thin: &config.ThinPool{Pool: "pool"}}
	pmem := config.DeviceClass{Name: "pmem", Type: config.Linear, Medium: config.PMEM}
	for name, c := range map[string]struct {
		class  config.DeviceClass
		change func(*lvm.Volume)
		want   string
	}{
		"an ordinary one": {class: linear},
		"one that is active, open, and has another's tags": {class: linear, change: func(lv *lvm.Volume) {
			lv.Attr.Activation, lv.Attr.Open, lv.Tags = lvm.Active, true, []string{"theirs"}
		}},
		"one that has a volume's name":          {linear, func(lv *lvm.Volume) { lv.Name = "cv" + strings.Repeat("a", 26) }, "has a name as Carve gives"},
		"one that has a snapshot's name":        {linear, func(lv *lvm.Volume) { lv.Name = "cs" + strings.Repeat("a", 26) }, "has a name as Carve gives"},
		"any, in a class on persistent memory":  {pmem, nil, "aligned for persistent memory"},
		"a thin one":                            {thin, func(lv *lvm.Volume) { lv.Attr.Type, lv.Pool = 'V', "pool" }, ""},
		"a thin one of another pool":            {thin, func(lv *lvm.Volume) { lv.Attr.Type, lv.Pool = 'V', "other" }, `is not in thin pool "pool"`},
		"one that is not thin, in a thin class": {thin, nil, `is not in thin pool "pool"`},
		"a thin one in a class that is not":     {linear, func(lv *lvm.Volume) { lv.Attr.Type, lv.Pool = 'V', "pool" }, `is a thin volume of pool "pool"`},
		"an external origin of thin volumes":    {thin, func(lv *lvm.Volume) { lv.Attr.Type, lv.Pool = 'o', "pool" }, "is of a type, 'o'"},
		"a thin pool":                           {linear, func(lv *lvm.Volume) { lv.Attr.Type = 't' }, "is of a type, 't'"},
		"a snapshot that is not thin":           {linear, func(lv *lvm.Volume) { lv.Attr.Type = 's' }, "is of a type, 's'"},
		"one that is being moved":               {linear, func(lv *lvm.Volume) { lv.Attr.Type = 'p' }, "is of a type, 'p'"},
		"a mirrored one":                        {mirrored, func(lv *lvm.Volume) { lv.Attr.Type, lv.Layout = 'r', layout.Layout{Type: layout.RAID1, Mirrors: 1} }, ""},
		"a mirrored one in a class that is not": {linear, func(lv *lvm.Volume) { lv.Attr.Type, lv.Layout = 'r', layout.Layout{Type: layout.RAID1, Mirrors: 1} }, "class \"linear\" is"},
		"a striped one in a mirrored class": {mirrored, func(lv *lvm.Volume) {
			lv.Layout = layout.Layout{Type: layout.Striped, Stripes: 2, StripeSize: 64 << 10}
		}, "class \"mirrored\" is"},
		"a linear one, in a class with stripes on all devices": {class: all},
		"a striped one, in a class with stripes on all devices": {all, func(lv *lvm.Volume) {
			lv.Layout = layout.Layout{Type: layout.Striped, Stripes: 2, StripeSize: 64 << 10}
		}, ""},
		"a mirrored one, in a class with stripes on all devices": {all, func(lv *lvm.Volume) {
			lv.Attr.Type, lv.Layout = 'r', layout.Layout{Type: layout.RAID1, Mirrors: 1}
		}, `is raid1 over 2 devices, class "all" is striped`},
		"one that is read-only":                 {linear, func(lv *lvm.Volume) { lv.Attr.Writable = false }, "is read-only"},
		"one that is not activated with others": {linear, func(lv *lvm.Volume) { lv.Attr.SkipActivation = true }, "is skipped when volumes are activated"},
		"one of which a disk is missing":        {linear, func(lv *lvm.Volume) { lv.Attr.Health = lvm.Partial }, "is not healthy"},
		"a mirrored one that must be read again": {mirrored, func(lv *lvm.Volume) {
			lv.Attr.Type, lv.Layout, lv.Attr.Health = 'r', layout.Layout{Type: layout.RAID1, Mirrors: 1}, lvm.RefreshNeeded
		}, "is not healthy"},
	} {
		t.Run(name, func(t *testing.T) {
			lv := &lvm.Volume{Name: "0f2bdf1e", Layout: layout.Layout{Type: layout.Linear}, Attr: lvm.Attr{Type: '-', Writable: true}}
			if c.change != nil {
				c.change(lv)
			}
			err := Home{in: &classGroup{class: &class{DeviceClass: c.class}}}.Takes(lv)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("want %q, got %v", c.want, err)
			}
		})
	}
}
