package lvmfake_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvm/lvmtest"
)

func TestTheFakesFreeSpaceIsWhatTheArithmeticSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := lvmfake.New()
		f.AddGroupOf("carve", 4<<20, rapid.SliceOfN(rapid.Int64Range(1, 30), 1, 6).Draw(t, "devices")...)
		lvmtest.Capacity(t, lvmtest.Env{Groups: f, Group: "carve"}, 30, func(n int) int {
			return rapid.IntRange(0, n-1).Draw(t, "choice")
		})
	})
}
