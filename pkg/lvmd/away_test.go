//go:build !kernel

package lvmd

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carve-csi/carve/api/conditions"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/waittest"
)

type watchedLVM struct {
	lvm.Groups
	mu    sync.Mutex
	scans [][]string
	reads int
}

func (l *watchedLVM) Scan(ctx context.Context, groups []string) ([]lvm.Group, error) {
	l.mu.Lock()
	l.scans = append(l.scans, groups)
	l.mu.Unlock()
	return l.Groups.Scan(ctx, groups)
}

func (l *watchedLVM) Metadata(group string) (ondisk.Metadata, error) {
	l.mu.Lock()
	l.reads++
	l.mu.Unlock()
	return l.Groups.Metadata(group)
}

func (l *watchedLVM) seen() (scans [][]string, reads int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.scans), l.reads
}

func (m *machine) startWatched(t *testing.T, interval time.Duration) (*daemon, *watchedLVM) {
	watched := &watchedLVM{}
	d := m.start(t, func(_ *daemon, o *Options) { watched.Groups, o.LVM, o.awayInterval = o.LVM, watched, interval })
	return d, watched
}

func TestGroupsThatWereAwayAreFoundWithoutAnEvent(t *testing.T) {
	const hidden = `the system ID "other" (vgchange --systemid)`
	for _, c := range []struct {
		name      string
		away      func(m *machine, group string, away bool)
		condition string
		message   string
	}{
		{"of another machine", func(m *machine, group string, away bool) {
			m.fake.SetForeign(group, map[bool]string{true: hidden}[away])
		}, conditions.VolumeGroupForeign, hidden},
		{"without disks", func(m *machine, group string, away bool) { m.fake.PlugGroup(group, !away) }, conditions.VolumeGroupMissing, "does not exist"},
		{"without one disk", func(m *machine, group string, away bool) { m.fake.SetMissing(group, away) }, conditions.MissingDevice, "are missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			m.fake.AddGroup("second", testExtent, testTotal)
			m.config += "- {name: second, volumeGroup: second}\n"
			both := []string{testGroup, "second"}
			for _, group := range both {
				c.away(m, group, true)
			}
			d, watched := m.startWatched(t, time.Millisecond)
			if kind, message := d.classCondition(); kind != c.condition || !strings.Contains(message, c.message) {
				t.Errorf("got the condition %s (%s), want %s (… %s …)", kind, message, c.condition, c.message)
			}
			waittest.Until(t, "one scan looks for both", func() bool {
				scans, _ := watched.seen()
				return slices.ContainsFunc(scans[1:], func(s []string) bool { return slices.Equal(s, both) })
			}, func() any { scans, _ := watched.seen(); return scans })
			for _, group := range both {
				c.away(m, group, false)
			}
			waittest.Until(t, "both classes can be used", func() bool {
				return d.available() == testTotal && len(d.classNamed("second").GetConditions()) == 0
			}, func() any { return d.state().GetClasses() })
			d.create(request("v", 1))
		})
	}
}

func TestLVMIsAskedOnlyForGroupsThatAreAway(t *testing.T) {
	m := newMachine(t)
	polled := func(d *daemon, watched *watchedLVM, what string) {
		t.Helper()
		before, reads := watched.seen()
		waittest.Until(t, "lvmd polled", func() bool { _, now := watched.seen(); return now > reads+20 })
		if after, _ := watched.seen(); len(after) != len(before) {
			t.Errorf("%s: lvmd polled, and scanned %d times", what, len(after)-len(before))
		}
	}
	d, watched := m.startWatched(t, time.Millisecond)
	polled(d, watched, "all groups are there")
	d.stop()
	m.fake.SetForeign(testGroup, "the lock type sanlock")
	d, watched = m.startWatched(t, time.Hour)
	polled(d, watched, "a group is hidden")
	m.fake.SetForeign(testGroup, "")
	waittest.Until(t, "the class can be used", func() bool { return d.available() == testTotal })
	m.fake.SetForeign(testGroup, "the lock type sanlock")
	waittest.Until(t, "the class says so", func() bool { kind, _ := d.classCondition(); return kind == conditions.VolumeGroupForeign })
	polled(d, watched, "a group was hidden while lvmd ran")
}
