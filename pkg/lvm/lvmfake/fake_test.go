package lvmfake_test

import (
	"testing"

	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvm/lvmtest"
)

func TestFakeIsAnLVM(t *testing.T) {
	lvmtest.Run(t, func(t *testing.T) lvmtest.Env {
		f := lvmfake.New()
		f.AddGroup("carve", 4<<20, 32)
		hold := func(group, volume string) (func(), error) {
			return func() { f.Unmount(group, volume) }, f.Mount(group, volume)
		}
		return lvmtest.Env{
			Groups: f, Group: "carve", Hold: hold, HoldCrypt: hold,
			Deactivate: f.Deactivate,
			Tear:       func(volume string) { f.Tear("carve", volume) },
		}
	})
}
