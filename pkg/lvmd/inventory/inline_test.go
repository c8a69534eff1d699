//go:build !kernel

package inventory

import (
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/iolimit"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
)

func TestInlineVolumesTakeAtMostTheirShare(t *testing.T) {
	type volume struct {
		class           string
		inline, deleted bool
		extents         int64
	}
	for name, test := range map[string]struct {
		setting string
		there   []volume
		most    int64
	}{
		"half by default":           {"", nil, 5},
		"none":                      {", inlinePercent: 0", nil, 0},
		"all":                       {", inlinePercent: 100", nil, 10},
		"a fraction of an extent":   {", inlinePercent: 29", nil, 2},
		"beside inline volumes":     {"", []volume{{class: "local", inline: true, extents: 1}, {class: "local", inline: true, extents: 2}}, 2},
		"beside a deleted one":      {"", []volume{{class: "local", inline: true, deleted: true, extents: 3}}, 2},
		"beside another class' one": {"", []volume{{class: "other", inline: true, extents: 3}}, 5},
		"beside a claim's volume":   {"", []volume{{class: "local", extents: 3}}, 5},
		"of which more is taken":    {", inlinePercent: 10", []volume{{class: "local", inline: true, extents: 5}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			classes := func(setting string) string {
				return "- {name: local, volumeGroup: carve" + setting + "}\n- {name: other, volumeGroup: carve}\n"
			}
			m, _ := scanned(t, Options{})
			m.Reconfigure(parsed(t, classes("")), nil)
			admit := func(name string, v volume) (Admission, error) {
				ident := spec.Identity{Name: name, Class: v.class, Block: true, Size: spec.Size{Required: v.extents * extent}}
				if v.inline {
					ident.Owner.PodUID = "uid"
				}
				return m.AdmitCreation(ident, iolimit.Limits{}, false)
			}
			for i, v := range test.there {
				a := must.Get(admit(string(rune('a'+i)), v))(t)
				if v.deleted {
					a.Volume.MarkDeleted(nil)
				}
			}
			m.Reconfigure(parsed(t, classes(test.setting)), nil)
			_, err := admit("new", volume{class: "local", inline: true, extents: test.most + 1})
			if err == nil || test.most < free(m) && !strings.Contains(err.Error(), `or raise inlinePercent of device class "local"`) {
				t.Errorf("%d extents are refused with %v, want the share named", test.most+1, err)
			}
			if test.most > 0 {
				must.Get(admit("new", volume{class: "local", inline: true, extents: test.most}))(t)
			}
		})
	}
}
