//go:build kernel

package lvmd_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// TestARawVolumeGrowsIntoZeroesWhereAnotherProgramHasWritten has an lvmd that does not look at its
// group by itself: another program writes to extents that lvmd has wiped, just before they are
// given to a volume.
func TestARawVolumeGrowsIntoZeroesWhereAnotherProgramHasWritten(t *testing.T) {
	n := newNode(t)
	c := must.Get(config.Load(n.writeConfig()))(t)
	system := filepath.Join(n.dir, "lvm-system")
	must.Succeed(t, lvm.MakeSystemDir(system))
	host := lvm.NewHost(&lvm.Runner{Binary: "lvm", Timeout: time.Minute, SystemDir: system})
	service := must.Get(lvmd.New(t.Context(), lvmd.Options{
		Config: c, StateDir: n.dir, Log: slog.New(slog.DiscardHandler), LVM: host, Devices: host, PollInterval: time.Hour,
	}))(t)
	service.Start()
	defer func() { must.Succeed(t, service.Stop(context.Background())) }()
	const size = 16 << 20
	grows := must.Get(service.CreateVolume(t.Context(), create("grows", size, "")))(t).GetVolume()
	wiped := must.Get(service.CreateVolume(t.Context(), create("wiped", 2*size, "")))(t).GetVolume()
	fill(t, wiped, 0x5a)
	must.Get(service.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: wiped.GetId()}))(t)
	waittest.Until(t, "it is removed", func() bool { return len(n.leftovers()) == 1 })
	lvmByHand(t, "lvcreate", "--yes", "--name", "theirs", "--extents", "100%FREE", "--wipesignatures", "n", "carve")
	theirs := must.Get(os.OpenFile("/dev/carve/theirs", os.O_WRONLY|syscall.O_SYNC, 0))(t)
	for range 3 * size >> 20 {
		must.Get(theirs.Write(bytes.Repeat([]byte{0xa5}, 1<<20)))(t)
	}
	must.Succeed(t, theirs.Close())
	lvmByHand(t, "lvremove", "--yes", "carve/theirs")
	grown := must.Get(service.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: grows.GetId(), RequiredBytes: 2 * size}))(t).GetVolume()
	Map(t, grown)
	must.Get(service.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: grows.GetId()}))(t)
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 })
}
