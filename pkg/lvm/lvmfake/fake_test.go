package lvmfake_test

import (
	"testing"

	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvm/lvmtest"
	"github.com/carve-csi/carve/pkg/must"
)

func TestFakeIsAnLVM(t *testing.T) {
	for name, zeroes := range map[string]bool{"of disks that zero what is discarded": true, "of disks that do not": false} {
		t.Run(name, func(t *testing.T) { isAnLVM(t, zeroes) })
	}
}

func isAnLVM(t *testing.T, discardZeroes bool) {
	lvmtest.Run(t, func(t *testing.T) lvmtest.Env {
		f := lvmfake.New()
		f.DiscardZeroes = discardZeroes
		f.AddGroup("carve", 4<<20, 32)
		hold := func(group, volume string) (func(), error) {
			return func() { f.Unmount(group, volume) }, f.Mount(group, volume)
		}
		return lvmtest.Env{
			Groups: f, Group: "carve", Hold: hold, HoldCrypt: hold,
			Deactivate:       f.Deactivate,
			MakeInconsistent: func(volume string) { f.MakeInconsistent("carve", volume) },
			MakeSnapshot:     func(origin, name string) { must.Succeed(t, f.MakeSnapshot("carve", origin, name)) },
		}
	})
}
