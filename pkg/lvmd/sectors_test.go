//go:build !kernel

package lvmd

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// largeDisk makes a device's sectors 4096 bytes, all others' 512.
func largeDisk(path string) func(*daemon, *Options) {
	return func(_ *daemon, o *Options) {
		o.sectorSize = func(of string) (int64, error) {
			if of == path {
				return 4096, nil
			}
			return 512, nil
		}
	}
}

func twoDisks(t *testing.T) *machine {
	t.Helper()
	m := &machine{fake: lvmfake.New(), state: stateDir(t), config: oneClass, formatted: map[string]filesystem.FormatOptions{}}
	m.fake.AddGroupOf(testGroup, testExtent, testTotal/2, testTotal/2)
	return m
}

func TestVolumesDoNotGrowOntoLargerSectors(t *testing.T) {
	m := twoDisks(t)
	d := m.start(t, largeDisk("/dev/fake-carve-1"))
	grow := func(id string) error {
		_, err := d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: id, RequiredBytes: 5 * testExtent})
		return err
	}
	fs, raw := d.create(fsRequest("fs", 4, "ext4")), d.create(request("raw", 4))
	for _, v := range []*lvmdv1.Volume{fs, raw} {
		err := grow(v.GetId())
		wantCode(t, err, codes.ResourceExhausted, names.ReasonNoSpace)
		if !strings.Contains(status.Convert(err).Message(), "pvchange --allocatable n /dev/fake-carve-1") {
			t.Errorf("the message is %v", err)
		}
	}
	_, err := d.client.CreateVolume(t.Context(), from(fsRequest("clone", 4, "ext4"), fs.GetId()))
	wantCode(t, err, codes.ResourceExhausted, names.ReasonNoSpace)
	d.checkModel()
	d.stop()
	d = m.start(t, largeDisk(fs.GetDevicePath()))
	if err := grow(fs.GetId()); err != nil {
		t.Errorf("onto smaller sectors: %v", err)
	}
	if err := grow(raw.GetId()); err != nil {
		t.Errorf("onto equal sectors: %v", err)
	}
}

func TestPoolDoesNotGrowOntoLargerSectors(t *testing.T) {
	m := twoDisks(t)
	m.config = thinClass("size: 40Mi, overprovisioning: 3, dataThreshold: 50%, autoExtend: {step: 8Mi}")
	d := m.start(t, largeDisk("/dev/fake-carve-1"))
	v := d.create(request("a", 6))
	thin := d.create(request("b", 2))
	must.Succeed(t, m.fake.Fill(testGroup, v.GetId(), 1))
	waittest.Until(t, "the pool says why it cannot grow", func() bool {
		return strings.Contains(d.message("PoolCannotGrow"), "those of disk /dev/fake-carve-1")
	})
	if n := m.fake.Commands(lvmfake.OpExtendPool); n != 0 {
		t.Errorf("%d commands extended the pool", n)
	}
	if _, err := d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: thin.GetId(), RequiredBytes: 3 * testExtent}); err != nil {
		t.Errorf("a thin volume, which takes its pool's extents: %v", err)
	}
}
