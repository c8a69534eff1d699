//go:build !kernel

package inventory

import (
	"testing"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

func TestOnlyWhatLVMHasNotFinishedMakingIsHalfMade(t *testing.T) {
	raid := layout.Layout{Type: layout.RAID1, Mirrors: 1}
	volume := func(layout layout.Layout, skip bool, tags ...string) lvm.Volume {
		return lvm.Volume{Name: "cv1", Layout: layout, Tags: tags, Attr: lvm.Attr{SkipActivation: skip}}
	}
	bare := lvm.Volume{Name: "cv1_rmeta_0"}
	for _, c := range []struct {
		name    string
		volumes []lvm.Volume
		want    bool
	}{
		{"its bookkeeping lies bare and it is not activated", []lvm.Volume{volume(raid, true, spec.TagMarker), bare}, true},
		{"it is whole", []lvm.Volume{volume(raid, false, spec.TagMarker)}, false},
		{"an administrator forbade its activation", []lvm.Volume{volume(raid, true, spec.TagMarker)}, false},
		{"it gets another image", []lvm.Volume{volume(raid, false, spec.TagMarker), bare}, false},
		{"it is not ours", []lvm.Volume{volume(raid, true), bare}, false},
		{"it is a snapshot", []lvm.Volume{volume(layout.Layout{Type: layout.Linear}, true, spec.TagMarker), bare}, false},
		{"the bookkeeping is another volume's", []lvm.Volume{volume(raid, true, spec.TagMarker), {Name: "cv2_rmeta_0"}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := halfMade(&lvm.Group{Volumes: c.volumes})["cv1"]; got != c.want {
				t.Errorf("half made: %v", got)
			}
		})
	}
}
