//go:build kernel

package lvmd_test

import (
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/waittest"
)

func TestAGroupThatLVMHidesIsServedOnceItIsShown(t *testing.T) {
	const access = `global { system_id_source="lvmlocal" } local { system_id="another" } `
	for _, c := range []struct {
		name, condition, message string
		hide, show               func(t *testing.T, group string)
	}{
		{"with a foreign system ID", "VolumeGroupForeign", `the system ID "another"`,
			func(t *testing.T, group string) { lvmByHand(t, "vgchange", "--yes", "--systemid", "another", group) },
			func(t *testing.T, group string) {
				byHand(t, "lvm", "vgchange", "--yes", "--systemid", "", group, "--config", access+handConfig)
			}},
		{"shared", "VolumeGroupForeign", "the lock type sanlock",
			func(t *testing.T, _ string) {
				rewrite(t, "/dev/vdb", func(text string) string {
					return strings.Replace(text, "flags = []\n", "flags = []\nlock_type = \"sanlock\"\n", 1)
				})
			},
			func(t *testing.T, _ string) {
				rewrite(t, "/dev/vdb", func(text string) string { return strings.Replace(text, "lock_type = \"sanlock\"\n", "", 1) })
			}},
		{"exported", "ReadOnly", "is exported",
			func(t *testing.T, group string) { lvmByHand(t, "vgexport", group) },
			func(t *testing.T, group string) { lvmByHand(t, "vgimport", group) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t)
			n.debug = true
			hidden := false
			t.Cleanup(func() {
				if hidden {
					c.show(t, n.group)
				}
			})
			says := func(p *process) func() bool {
				return func() bool {
					found := p.classNamed("local").GetConditions()
					return len(found) == 1 && found[0].GetType() == c.condition && strings.Contains(found[0].GetMessage(), c.message)
				}
			}
			c.hide(t, n.group)
			hidden = true
			p := n.start()
			state := func() any { return p.classNamed("local") }
			waittest.Until(t, "the class says what hides its group", says(p), state)
			before := p.commands()
			for range 5 {
				earlier := readsOf(t, "vdb")
				waittest.Until(t, "lvmd looks at the disk", func() bool { return readsOf(t, "vdb") > earlier })
			}
			if ran := p.commands() - before; ran > 1 {
				t.Errorf("while the group is hidden, lvmd ran %d commands", ran)
			}
			c.show(t, n.group)
			hidden = false
			waittest.Until(t, "the class can be used", func() bool {
				return len(p.classNamed("local").GetConditions()) == 0 && p.available() > 0
			}, state)
			if c.name != "shared" { // Sharing a group does not raise the sequence number.
				c.hide(t, n.group)
				hidden = true
				waittest.Until(t, "the class says what hides its group while lvmd runs", says(p), state)
				c.show(t, n.group)
				hidden = false
				waittest.Until(t, "the class can be used again", func() bool { return len(p.classNamed("local").GetConditions()) == 0 }, state)
			}
			p.delete(p.create(create("pvc-1", 8<<20, "")).GetId())
			waittest.Until(t, "the volume is removed", func() bool { return len(n.leftovers()) == 0 })
		})
	}
}
