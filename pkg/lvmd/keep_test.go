//go:build !kernel

package lvmd

import (
	"testing"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/must"
)

func provisional(r *lvmdv1.CreateVolumeRequest) *lvmdv1.CreateVolumeRequest {
	r.Provisional = true
	return r
}

// isProvisional is what lvmd reports of a volume.
func (d *daemon) isProvisional(name string) bool {
	d.t.Helper()
	return must.Get(d.client.GetVolume(d.t.Context(), &lvmdv1.GetVolumeRequest{Name: name}))(d.t).GetVolume().GetProvisional()
}

// TestAVolumeIsProvisionalUntilAPersistentVolumeNamesIt restarts lvmd before and after that is noted, and in the end
// without a journal.
func TestAVolumeIsProvisionalUntilAPersistentVolumeNamesIt(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	want := func(when string, isProvisional map[string]bool) {
		t.Helper()
		for name, want := range isProvisional {
			if got := d.isProvisional(name); got != want {
				t.Errorf("%s: volume %s is provisional: %v, want %v", when, name, got, want)
			}
		}
	}
	restart := func() { d.stop(); d = m.start(t) }
	kept, left := d.create(provisional(request("kept", 1))), d.create(provisional(request("left", 1)))
	d.create(request("other", 1))
	want("made", map[string]bool{"kept": true, "left": true, "other": false})
	d.create(request("left", 1))
	d.create(provisional(request("other", 1)))
	restart()
	want("after a restart", map[string]bool{"kept": true, "left": true, "other": false})
	for range 2 {
		must.Get(d.client.KeepVolume(t.Context(), &lvmdv1.KeepVolumeRequest{Id: kept.GetId()}))(t)
	}
	want("kept", map[string]bool{"kept": false, "left": true, "other": false})
	restart()
	want("kept, after a restart", map[string]bool{"kept": false, "left": true, "other": false})
	_, err := d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: kept.GetId(), OnlyProvisional: true})
	wantCode(t, err, codes.FailedPrecondition, names.ReasonVolumeKept)
	for range 2 {
		must.Get(d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: left.GetId(), OnlyProvisional: true}))(t)
	}
	_, err = d.client.KeepVolume(t.Context(), &lvmdv1.KeepVolumeRequest{Id: left.GetId()})
	wantCode(t, err, codes.NotFound, names.ReasonVolumeNotFound)
	again := d.create(provisional(request("again", 1)))
	m.untagged(t, again.GetId())
	d.stop()
	m.loseJournal(t)
	d = m.start(t)
	want("without a journal", map[string]bool{"kept": false, "again": false, "other": false})
}
