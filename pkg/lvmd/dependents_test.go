//go:build !kernel

package lvmd

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// With pollsRarely, lvmd looks at its groups only when it acts.
func pollsRarely(_ *daemon, o *Options) { o.PollInterval = time.Hour }

// No scan has found the snapshots.
func TestAVolumeWithASnapshotIsNeitherDeletedNorGrown(t *testing.T) {
	m := newMachine(t)
	m.config = oneClass + "- {name: thin, volumeGroup: carve, type: thin, thin: {pool: carve-pool, size: 64Mi}}\n"
	d := m.start(t, pollsRarely)
	thin := request("pvc-thin", 2)
	thin.DeviceClass = "thin"
	for _, r := range []*lvmdv1.CreateVolumeRequest{request("pvc-1", 2), thin} {
		v := d.create(r)
		refused := func(what string, err error) {
			t.Helper()
			wantCode(t, err, codes.FailedPrecondition, names.ReasonHasDependents)
			if err != nil && !strings.Contains(err.Error(), "carve/backup") {
				t.Errorf("%s: error %v does not name the snapshot", what, err)
			}
		}
		grow := &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 4 * testExtent}
		must.Succeed(t, m.fake.MakeSnapshot(testGroup, v.GetId(), "backup"))
		_, err := d.client.ExpandVolume(t.Context(), grow)
		refused("growing", err)
		must.Succeed(t, m.fake.Remove(t.Context(), testGroup, []string{"backup"}))
		must.Succeed(t, d.groups.Rescan(d.groups.Named(testGroup)))
		must.Succeed(t, m.fake.MakeSnapshot(testGroup, v.GetId(), "backup"))
		_, err = d.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: v.GetId()})
		refused("deleting", err)
		got := must.Get(d.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Id: v.GetId()}))(t).GetVolume()
		if c := got.GetConditions(); len(c) != 1 || c[0].GetType() != conditions.HasDependents || !strings.Contains(c[0].GetMessage(), "carve/backup") {
			t.Errorf("conditions %v, want one that names the snapshot", c)
		}
		_, err = d.client.ExpandVolume(t.Context(), grow)
		refused("growing", err)
		if !m.fake.IsWhole(testGroup, "backup") {
			t.Error("the snapshot was harmed")
		}
		must.Succeed(t, m.fake.Remove(t.Context(), testGroup, []string{"backup"}))
		must.Succeed(t, d.groups.Rescan(d.groups.Named(testGroup)))
		must.Get(d.client.ExpandVolume(t.Context(), grow))(t)
		d.delete(v.GetId())
		waittest.Until(t, "it is gone", func() bool { return !slices.Contains(m.volumeNames(t), v.GetId()) })
	}
}

func TestADeletionWaitsForASnapshotThatIsMadeInTheMiddleOfIt(t *testing.T) {
	for _, class := range []string{"local", "thin"} {
		for _, place := range []string{"delete: tombstone written", "delete: marked", "delete: wiped"} {
			t.Run(class+" "+place, func(t *testing.T) {
				m := newMachine(t)
				m.config = oneClass + "- {name: thin, volumeGroup: carve, type: thin, thin: {pool: carve-pool, size: 64Mi}}\n"
				var once sync.Once
				var id string
				d := m.start(t, pollsRarely, func(d *daemon, o *Options) {
					o.crashPoint = func(at string) {
						if at == place {
							once.Do(func() { must.Succeed(t, m.fake.MakeSnapshot(testGroup, id, "backup")) })
						}
						d.gate.pass(at)
					}
				})
				r := request("pvc-1", 2)
				r.DeviceClass = class
				id = d.create(r).GetId()
				d.delete(id)
				waittest.Until(t, "a condition names both", func() bool {
					return slices.ContainsFunc(d.state().GetClasses()[0].GetConditions(), func(c *lvmdv1.Condition) bool {
						return c.GetType() == conditions.DeletionWaits && strings.Contains(c.GetMessage(), id) && strings.Contains(c.GetMessage(), "carve/backup")
					})
				})
				if !m.fake.IsWhole(testGroup, "backup") || !slices.Contains(m.volumeNames(t), id) {
					t.Errorf("the snapshot was harmed, or its origin removed")
				}
				d.stop()
				d = m.start(t)
				must.Succeed(t, m.fake.Remove(t.Context(), testGroup, []string{"backup"}))
				waittest.Until(t, "the volume is removed", func() bool { return !slices.Contains(m.volumeNames(t), id) })
				waittest.Until(t, "the condition is over", func() bool { return len(d.state().GetClasses()[0].GetConditions()) == 0 })
			})
		}
	}
}
