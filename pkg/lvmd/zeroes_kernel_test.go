//go:build kernel

package lvmd_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvmd"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// meddledWith lets another program act once, between lvmd's last look at the group and the
// command that grows a volume.
type meddledWith struct {
	lvm.Groups
	meddle func()
}

func (m meddledWith) ExtendAt(ctx context.Context, seqno uint64, group, volume string, extents int64, on ...layout.Share) error {
	m.meddle()
	return m.Groups.ExtendAt(ctx, seqno, group, volume, extents, on...)
}

// lvmd does not poll. Another program writes to extents that lvmd has wiped, just before a
// volume gets them.
func TestARawVolumeGrowsIntoZeroesWhereAnotherProgramHasWritten(t *testing.T) {
	const size = 16 << 20
	for _, c := range []struct {
		name        string
		wiped, late bool
	}{
		{"wiped, before lvmd looks", true, false},
		{"wiped, after lvmd has looked", true, true},
		{"zeroed for it, after lvmd has looked", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t)
			loaded := must.Get(config.Load(n.writeConfig()))(t)
			system := filepath.Join(n.dir, "lvm-system")
			must.Succeed(t, lvm.MakeSystemDir(system))
			host := must.Get(lvm.NewHost(&lvm.Runner{Binary: "lvm", Timeout: time.Minute, SystemDir: system}))(t)
			meddle := sync.OnceFunc(func() {
				lvmByHand(t, "lvcreate", "--yes", "--name", "theirs", "--extents", "100%FREE", "--wipesignatures", "n", "carve")
				theirs := must.Get(os.OpenFile("/dev/carve/theirs", os.O_WRONLY|syscall.O_SYNC, 0))(t)
				for range 3 * size >> 20 {
					must.Get(theirs.Write(bytes.Repeat([]byte{0xa5}, 1<<20)))(t)
				}
				must.Succeed(t, theirs.Close())
				lvmByHand(t, "lvremove", "--yes", "carve/theirs")
			})
			service := must.Get(lvmd.New(t.Context(), lvmd.Options{
				Config: loaded, StateDir: n.dir, Log: slog.New(slog.DiscardHandler), LVM: meddledWith{host, meddle}, Devices: host, PollInterval: time.Hour,
			}))(t)
			service.Start()
			defer func() { must.Succeed(t, service.Stop(context.Background())) }()
			grows := must.Get(service.CreateVolume(t.Context(), create("grows", size, "")))(t).GetVolume()
			if c.wiped {
				wiped := must.Get(service.CreateVolume(t.Context(), create("wiped", 2*size, "")))(t).GetVolume()
				fill(t, wiped, 0x5a)
				must.Get(service.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: wiped.GetId()}))(t)
				waittest.Until(t, "it is removed", func() bool { return len(n.leftovers()) == 1 })
			}
			grow := &lvmdv1.ExpandVolumeRequest{Id: grows.GetId(), RequiredBytes: 2 * size}
			if c.late {
				_, err := service.ExpandVolume(t.Context(), grow)
				if status.Code(err) != codes.Aborted {
					t.Errorf("growing into what another program had: error %v, want Aborted", err)
				}
			} else {
				meddle()
			}
			grown := must.Get(service.ExpandVolume(t.Context(), grow))(t).GetVolume()
			Map(t, grown)
			must.Get(service.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: grows.GetId()}))(t)
			waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 })
		})
	}
}
