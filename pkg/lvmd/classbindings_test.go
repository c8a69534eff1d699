//go:build !kernel

package lvmd

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestAStartRefusesAConfigurationThatWouldOrphanVolumes(t *testing.T) {
	const thin = "type: thin, thin: {size: 40Mi, pool: "
	for _, c := range []struct{ name, before, after, want string }{
		{"a class is gone", "", "- {name: other, volumeGroup: carve}\n", `device class "local" is gone, but has 2 volumes`},
		{"a class has another type", "", "- {name: local, volumeGroup: carve, type: striped, stripes: 2}\n",
			`device class "local" is of type striped, no more linear, but has 2 volumes`},
		{"a striped class", "- {name: local, volumeGroup: carve, type: striped, stripes: 2}\n", oneClass,
			`device class "local" is of type linear, no more striped, but has 2 volumes`},
		{"a class becomes thin", "", "- {name: local, volumeGroup: carve, " + thin + "p}}\n",
			`device class "local" is of type thin, no more linear, but has 2 volumes`},
		{"a class has another pool", "- {name: local, volumeGroup: carve, " + thin + "p}}\n", "- {name: local, volumeGroup: carve, " + thin + "q}}\n",
			`device class "local" is in thin pool "q", no more in "p", but has 2 volumes`},
		{"a class is in another group", "- {name: local, volumeGroup: carve}\n- {name: b, volumeGroup: second}\n",
			"- {name: local, volumeGroup: second}\n- {name: b, volumeGroup: carve}\n",
			`device class "local" is not in volume group "carve" any more, but has 2 volumes`},
	} {
		for _, journaled := range []bool{true, false} {
			if !journaled && strings.Contains(c.want, "no more") {
				continue // Only the journal records the class's layout.
			}
			t.Run(fmt.Sprintf("%s, with a journal %v", c.name, journaled), func(t *testing.T) {
				m := newDisks(t, 32, 32)
				m.fake.AddGroup("second", testExtent, testTotal)
				if m.config = c.before; c.before == "" {
					m.config = oneClass
				}
				before := m.config
				d := m.start(t)
				var ids []string
				for _, name := range []string{"a", "b", "c"} {
					ids = append(ids, d.create(inClass(request(name, 2), "local")).GetId())
				}
				d.delete(ids[2])
				if !journaled {
					// Leftovers would come back without their tombstone.
					waittest.Until(t, "it is gone", d.isIdle)
				}
				d.stop()
				if !journaled {
					m.loseJournal(t)
				}
				pools := m.fake.Commands(lvmfake.OpCreatePool)
				m.config = c.after
				_, err := m.tryStart(t)
				if !errors.Is(err, ErrOrphans) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "take that back") {
					t.Errorf("error %v, want %s", err, c.want)
				}
				if n := m.fake.Commands(lvmfake.OpCreatePool); n != pools {
					t.Errorf("%d thin pools were made for a configuration that is refused", n-pools)
				}
				m.config = before
				if n := len(m.start(t).list()); n != 2 {
					t.Errorf("%d volumes under the configuration before, want 2", n)
				}
			})
		}
	}
}

// Only the journal still knows the volumes' group.
func TestAGroupThatIsNotConfiguredAnyMoreIsMissedAtTheStart(t *testing.T) {
	m := newMachine(t)
	m.fake.AddGroup("elsewhere", testExtent, testTotal)
	d := m.start(t)
	v := d.create(request("a", 1))
	d.stop()
	m.config = "- {name: local, volumeGroup: elsewhere}\n"
	want := `device class "local" is not in volume group "carve" any more, but has 1 volume;`
	refused := func(when string) {
		t.Helper()
		if _, err := m.tryStart(t); !errors.Is(err, ErrOrphans) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", when, err, want)
		}
	}
	refused("the group is there")
	m.fake.PlugGroup(testGroup, false)
	refused("the group is missing")
	m.fake.PlugGroup(testGroup, true)
	must.Succeed(t, m.fake.Remove(t.Context(), testGroup, []string{v.GetId()}))
	m.start(t)
}

func TestWhatIsMissingOrEmptyIsNoReasonToRefuseAStart(t *testing.T) {
	const two = oneClass + "- {name: second, volumeGroup: second}\n"
	for _, c := range []struct {
		name, after string
		between     func(m *machine, d *daemon, second string)
	}{
		{"a group is missing", two, func(m *machine, _ *daemon, _ string) { m.fake.PlugGroup("second", false) }},
		{"a disk is missing", two, func(m *machine, _ *daemon, _ string) { m.fake.SetMissing("second", true) }},
		{"a missing group's class has other settings", oneClass + "- {name: second, volumeGroup: second, reserve: 5%, wipe: zero}\n",
			func(m *machine, _ *daemon, _ string) { m.fake.PlugGroup("second", false) }},
		{"an empty class is gone", oneClass, func(_ *machine, d *daemon, id string) { d.delete(id) }},
		{"an empty class has another type", oneClass + "- {name: second, volumeGroup: second, type: striped, stripes: 2}\n",
			func(_ *machine, d *daemon, id string) { d.delete(id) }},
		{"what it has left is not wiped yet, as its group is missing", oneClass, func(m *machine, d *daemon, id string) {
			m.fake.PlugGroup("second", false)
			d.delete(id)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			m.fake.AddGroupOf("second", testExtent, 16, 16)
			m.config = two
			d := m.start(t)
			d.create(request("a", 1))
			c.between(m, d, d.create(inClass(request("b", 2), "second")).GetId())
			d.stop()
			m.config = c.after
			m.start(t)
		})
	}
}

func TestWhatWasTakenOnceIsTakenAgain(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	ident := spec.Identity{Name: "unknown", Class: "unknown", Block: true}
	must.Succeed(t, m.fake.Create(t.Context(), lvm.CreateOptions{Group: testGroup, Volume: spec.NewVolumeID(), Extents: 1, Tags: ident.Tags()}))
	waittest.Until(t, "it is noticed", func() bool { return len(d.list()) == 1 })
	reserved := "- {name: local, volumeGroup: carve, reserve: 10Mi}\n"
	if err := d.Reload(parse(t, reserved)); err != nil {
		t.Errorf("reload: %v", err)
	}
	d.stop()
	m.config = reserved
	if d = m.start(t); len(d.list()) != 1 {
		t.Errorf("volumes %v, want one", d.list())
	}
}

func TestVolumesOfAnotherLayoutAreNoReasonToRefuseAStartWithoutAJournal(t *testing.T) {
	m := newDisks(t, 16, 16, 16)
	m.config = oneClass
	d := m.start(t)
	d.create(request("a", 1))
	d.stop()
	ident := spec.Identity{Name: "b", Class: "local", Block: true}
	must.Succeed(t, m.fake.Create(t.Context(), lvm.CreateOptions{Group: testGroup, Volume: spec.NewVolumeID(), Extents: 1, Tags: ident.Tags(),
		Layout: layout.Layout{Type: layout.RAID1, Mirrors: 1}}))
	m.loseJournal(t)
	m.start(t)
}

func TestAStartRefusesWhatAReloadRefuses(t *testing.T) {
	fewHistories(t)
	rapid.Check(t, func(r *rapid.T) {
		m := newDisks(t, 16, 16)
		m.fake.AddGroupOf("second", testExtent, 16, 16)
		classes := func(label string) string {
			text := "- {name: always, volumeGroups: [carve, second]}\n" // so that both groups are always configured
			for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.ID).Draw(r, label) {
				groups := rapid.SampledFrom([]string{"[carve]", "[second]", "[carve, second]"}).Draw(r, "groups")
				layout := rapid.SampledFrom([]string{"linear", "striped, stripes: 2", "raid1"}).Draw(r, "layout")
				text += fmt.Sprintf("- {name: %s, volumeGroups: %s, type: %s}\n", name, groups, layout)
			}
			return text
		}
		m.config = classes("before")
		d := m.start(t)
		defer func() { d.stop() }()
		for i, dc := range d.state().GetClasses() {
			for j := range rapid.IntRange(0, 2).Draw(r, "volumes") {
				d.create(inClass(request(fmt.Sprintf("pvc-%d-%d", i, j), 2), dc.GetName()))
			}
		}
		before := m.config
		for range 3 {
			after := classes("after")
			c := must.Get(config.Parse("lvmd.yaml", []byte("apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n"+after)))(r)
			reloadErr := d.Reload(c)
			if reloadErr == nil {
				c, _ := config.Parse("lvmd.yaml", []byte("apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n"+before))
				if err := d.Reload(c); err != nil {
					r.Fatalf("back again: %v", err)
				}
			}
			d.stop()
			lost := rapid.Bool().Draw(r, "the journal is lost")
			if m.config = after; lost {
				m.loseJournal(t)
			}
			next, startErr := m.tryStart(t)
			want := reloadErr
			if lost && reloadErr != nil && strings.Contains(reloadErr.Error(), "no more") {
				// Only the journal records the layouts: the start can reject only for the other
				// reasons.
				if want = startErr; (startErr != nil) != (strings.Contains(reloadErr.Error(), "is gone") || strings.Contains(reloadErr.Error(), "any more")) {
					r.Fatalf("from\n%sto\n%sthe start without a journal says %v\nthe reload says %v", before, after, startErr, reloadErr)
				}
			}
			if fmt.Sprint(startErr) != fmt.Sprint(want) || startErr != nil && !errors.Is(startErr, ErrOrphans) {
				r.Fatalf("from\n%sto\n%sthe start says %v\nthe reload says %v", before, after, startErr, reloadErr)
			}
			if startErr == nil {
				d, before = next, after
				continue
			}
			m.config = before
			d = m.start(t)
		}
	})
}
