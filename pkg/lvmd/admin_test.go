//go:build !kernel

package lvmd

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestWhatAnAdministratorDoesIsSeen(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(request("pvc-1", 2))
	must.Succeed(t, m.fake.Create(t.Context(), lvm.CreateOptions{Group: testGroup, Volume: "admins", Extents: 10}))
	waittest.Until(t, "the space shrinks", func() bool { return d.available() == testTotal-12 })
	must.Succeed(t, m.fake.Remove(t.Context(), testGroup, []string{v.GetId()}))
	waittest.Until(t, "the volume is gone", func() bool { return len(d.list()) == 0 })
	d.checkModel()
	scans := m.fake.Commands(lvmfake.OpScan)
	for range 10 {
		d.groups.Refresh(t.Context(), d.groups.Named(testGroup))
	}
	if now := m.fake.Commands(lvmfake.OpScan); now != scans {
		t.Errorf("%d scans while nothing happened", now-scans)
	}
}

// Devices come and go without a change of the metadata.
func TestDevicesThatAnAdministratorTakesAwayAndMakesAreSeen(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v, other := d.create(request("pvc-1", 2)), d.create(sealed(request("pvc-2", 2)))
	get := func(id string) *lvmdv1.Volume {
		t.Helper()
		r := must.Get(d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Id: id}))(t)
		return r.GetVolume()
	}
	m.fake.Renumber(testGroup, v.GetId(), false)
	waittest.Until(t, "the volume has no device", func() bool {
		now := get(v.GetId())
		return now.GetDevicePath() == "" && len(now.GetConditions()) == 1 && now.GetConditions()[0].GetType() == "Inactive"
	})
	for range 2 { // The second time, it replaces a device and gets another number.
		before := get(v.GetId()).GetDeviceMinor()
		m.fake.Renumber(testGroup, v.GetId(), true)
		waittest.Until(t, "the volume has a device of another number", func() bool {
			now := get(v.GetId())
			return now.GetDevicePath() == v.GetDevicePath() && now.GetDeviceMinor() != before && len(now.GetConditions()) == 0
		})
		want, err := m.fake.Device(testGroup, v.GetId())
		if got := get(v.GetId()).GetDeviceMinor(); err != nil || got != want.Minor {
			t.Errorf("minor number %d, want %d, error %v", got, want.Minor, err)
		}
	}
	if got := get(other.GetId()); got.GetDeviceMinor() != other.GetDeviceMinor() {
		t.Errorf("an encrypted volume has now minor number %d, want %d", got.GetDeviceMinor(), other.GetDeviceMinor())
	}
	m.fake.Renumber(testGroup, v.GetId(), false)
	waittest.Until(t, "the volume has no device", func() bool { return get(v.GetId()).GetDevicePath() == "" })
	scans := m.fake.Commands(lvmfake.OpScan)
	for range 2 {
		for range 10 {
			d.groups.Refresh(t.Context(), d.groups.Named(testGroup))
			time.Sleep(d.groups.PollInterval) // Within the interval, the next call need not look.
		}
		if now := m.fake.Commands(lvmfake.OpScan); now != scans {
			t.Errorf("%d scans while nothing happened", now-scans)
		}
		m.fake.Renumber(testGroup, v.GetId(), true)
		waittest.Until(t, "the volume has a device", func() bool { return get(v.GetId()).GetDevicePath() != "" })
		scans = m.fake.Commands(lvmfake.OpScan)
	}
	d.checkModel()
}

func TestAMissingDeviceIsReportedAndEndsWithItsReturn(t *testing.T) {
	m := newMachine(t)
	events := make(chan struct{}, 1)
	d := m.start(t, func(_ *daemon, o *Options) { o.BlockEvents = events })
	v := d.create(request("pvc-1", 2))
	m.fake.SetMissing(testGroup, true)
	waittest.Until(t, "the class has a condition and no free space", func() bool {
		c := d.state().GetClasses()[0]
		return len(c.GetConditions()) > 0 && c.GetAvailableBytes() == 0
	})
	_, err := d.client.CreateVolume(t.Context(), request("pvc-2", 1))
	wantCode(t, err, codes.Unavailable, names.ReasonDeviceMissing)
	if got := d.list(); len(got) != 1 || len(got[0].GetConditions()) == 0 {
		t.Errorf("volumes %v", got)
	}
	m.fake.SetMissing(testGroup, false)
	events <- struct{}{}
	waittest.Until(t, "all is well", func() bool {
		s := d.state()
		return len(s.GetClasses()[0].GetConditions()) == 0 && len(s.GetVolumes()[0].GetConditions()) == 0
	})
	d.delete(v.GetId())
	d.checkClean()
}
