//go:build !kernel

package lvmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestTheOnlyVolumeOfAGroupIsGoneWhenAnAdministratorRemovedIt(t *testing.T) {
	for name, test := range map[string]struct {
		// change follows the removal; known is the sequence number from before.
		change func(m *machine, known uint64)
		// refused is the condition's text, or "" if lvmd accepts the removal.
		refused string
	}{
		"removed":                                 {func(*machine, uint64) {}, ""},
		"removed with a disk":                     {func(m *machine, _ uint64) { m.fake.TakeDevice(testGroup) }, ""},
		"removed, and much else was done":         {func(m *machine, known uint64) { m.fake.SetSeqno(testGroup, known+100) }, ""},
		"gone with the number from before":        {func(m *machine, known uint64) { m.fake.SetSeqno(testGroup, known) }, "sequence number that it had"},
		"gone, with another disk in place of one": {func(m *machine, _ uint64) { m.fake.ReplaceDevice(testGroup, "fake-pv-"+testGroup+"-1", "another") }, "disks that it did not have (/dev/"},
	} {
		for _, running := range []bool{true, false} {
			t.Run(name+map[bool]string{true: " while lvmd runs", false: " while lvmd is away"}[running], func(t *testing.T) {
				m := newDisks(t, testTotal/2, testTotal/2)
				m.config = oneClass
				d := m.start(t, probeNow)
				id := d.create(request("a", 2)).GetId()
				known := must.Get(m.fake.Metadata(testGroup))(t).Seqno
				done := must.Get(d.groups.Acquire(t.Context(), d.groups.Named(testGroup)))(t)
				if !running {
					done()
					d.stop()
				}
				must.Succeed(t, m.fake.Remove(t.Context(), testGroup, []string{id}))
				test.change(m, known)
				if running {
					done()
				} else {
					d = m.start(t, probeNow)
				}
				if test.refused == "" {
					waittest.Until(t, "it is known to be gone", func() bool { return len(d.list()) == 0 && d.available() >= testTotal/2 })
					return
				}
				waittest.Until(t, "the group is refused", func() bool {
					kind, _ := d.classCondition()
					return kind != "" && d.available() == 0
				})
				if kind, message := d.classCondition(); !strings.Contains(message, test.refused) || !strings.Contains(kind, "VolumeGroup") {
					t.Errorf("the condition %s says %q, want %q", kind, message, test.refused)
				}
				if got := d.list(); len(got) != 1 || len(got[0].GetConditions()) == 0 {
					t.Errorf("the volumes are %v, want one with a condition", got)
				}
				must.Succeed(t, os.WriteFile(filepath.Join(m.state, "accept-volume-group-fake-"+testGroup), nil, 0o600))
				waittest.Until(t, "it is accepted", func() bool { return d.available() == testTotal && len(d.list()) == 0 })
				d.create(request("a", 1))
			})
		}
	}
}
