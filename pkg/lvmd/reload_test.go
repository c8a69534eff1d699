//go:build !kernel

package lvmd

import (
	"errors"
	"strings"
	"testing"

	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func parse(t *testing.T, classes string) *config.Config {
	t.Helper()
	c := must.Get(config.Parse("lvmd.yaml", []byte("apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n"+classes)))(t)
	return c
}

func TestAChangedConfigurationIsTakenOverWithoutADisturbance(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(request("a", 4))
	w := must.Get(d.client.Watch(t.Context(), &lvmdv1.WatchRequest{}))(t)
	must.Get(w.Recv())(t)
	must.Succeed(t, d.Reload(parse(t, "- {name: local, volumeGroup: carve, reserve: 10Mi, wipe: zero}\n- {name: other, default: true, volumeGroup: carve}\n")))
	r := must.Get(w.Recv())(t)
	if !r.GetFull() || len(r.GetClasses()) != 2 || len(r.GetVolumes()) != 1 {
		t.Errorf("watchers got %v", r)
	}
	if got, want := r.GetClasses()[0].GetAvailableBytes(), (testTotal-4-3)*testExtent; got != want {
		t.Errorf("available %d with the new reserve, want %d", got, want)
	}
	if b := d.create(request("b", 1)); b.GetDeviceClass() != "other" {
		t.Errorf("made in class %q, the default is other", b.GetDeviceClass())
	}
	d.delete(v.GetId())
	waittest.Until(t, "it is gone", func() bool { return len(d.list()) == 1 })
	if err := d.Reload(parse(t, "- {name: other, default: true, volumeGroup: carve}\n")); err != nil {
		t.Error(err)
	}
	r = must.Get(w.Recv())(t)
	for !r.GetFull() {
		r = must.Get(w.Recv())(t)
	}
	if len(r.GetClasses()) != 1 {
		t.Errorf("watchers got %v", r)
	}
}

type slowPlacement struct {
	lvm.Groups
	asked, goOn chan struct{}
}

func (s *slowPlacement) Placement(group string) (ondisk.Placement, error) {
	close(s.asked)
	<-s.goOn
	return s.Groups.Placement(group)
}

func TestAReloadThatWaitsForADiskHoldsUpNoOtherOperation(t *testing.T) {
	m := newMachine(t)
	slow := &slowPlacement{asked: make(chan struct{}), goOn: make(chan struct{})}
	d := m.start(t, func(_ *daemon, o *Options) { slow.Groups, o.LVM = o.LVM, slow })
	c := parse(t, oneClass+"- {name: striped, volumeGroup: carve, type: striped, stripes: 2}\n")
	reloaded := make(chan error)
	go func() { reloaded <- d.Reload(c) }()
	<-slow.asked
	if d.admission.TryRLock() {
		d.admission.RUnlock()
	} else {
		t.Error("no operation is admitted meanwhile")
	}
	close(slow.goOn)
	must.Succeed(t, <-reloaded)
}

func TestAConfigurationThatWouldOrphanVolumesIsRefused(t *testing.T) {
	for _, c := range []struct{ name, classes, want string }{
		{"a class is gone", "- {name: other, volumeGroup: carve}\n", `device class "local" is gone, but has 2 volumes`},
		{"a class is elsewhere", "- {name: local, volumeGroup: elsewhere}\n", `device class "local" is not in volume group "carve" any more, but has 2 volumes`},
		{"a class is laid out otherwise", "- {name: local, volumeGroup: carve, type: striped, stripes: 2}\n", `device class "local" is of type striped, no more linear, but has 2 volumes`},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			d := m.start(t)
			d.create(request("a", 1))
			d.create(request("b", 1))
			err := d.Reload(parse(t, c.classes))
			if !errors.Is(err, ErrOrphans) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want %s", err, c.want)
			}
			d.Refuse(err.Error())
			conditions := d.state().GetClasses()[0].GetConditions()
			if len(conditions) != 1 || conditions[0].GetType() != "ConfigurationRefused" || !strings.Contains(conditions[0].GetMessage(), c.want) {
				t.Errorf("conditions %v", conditions)
			}
			wantSamples(t, d.Service, map[string]float64{"config_current": 0})
			if v := d.create(request("c", 1)); v.GetDeviceClass() != "local" {
				t.Error("the configuration before is not in force")
			}
			if err := d.Reload(parse(t, oneClass)); err != nil {
				t.Error(err)
			}
			if conditions := d.state().GetClasses()[0].GetConditions(); len(conditions) != 0 {
				t.Errorf("conditions %v", conditions)
			}
			wantSamples(t, d.Service, map[string]float64{"config_current": 1})
		})
	}
}

func TestOtherVolumeGroupsNeedANewStart(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	for _, classes := range []string{
		"- {name: local, volumeGroups: [carve, second]}\n",
		"- {name: local, volumeGroup: carve}\n- {name: b, volumeGroup: second, optional: true}\n",
		"- {name: local, volumeGroup: carve}\n- {name: t, volumeGroup: carve, type: thin, thin: {pool: p, size: 10%}}\n",
		"- {name: local, volumeGroup: carve, volumeGroupUUIDs: [aaaaaa-bbbb-cccc-dddd-eeee-ffff-gggggg]}\n",
	} {
		if err := d.Reload(parse(t, classes)); !errors.Is(err, ErrNeedsStart) {
			t.Errorf("%serror %v", classes, err)
		}
	}
}

func TestAConfigurationThatTheDisksAreNotFitForIsRefused(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	err := d.Reload(parse(t, "- {name: local, volumeGroup: carve}\n- {name: p, volumeGroup: carve, medium: pmem}\n"))
	var problems config.Problems
	if !errors.As(err, &problems) {
		t.Errorf("error %v", err)
	}
}
