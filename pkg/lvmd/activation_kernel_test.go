//go:build kernel

package lvmd_test

import (
	"slices"
	"strings"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/waittest"
)

// active returns the group's volumes and thin pools that LVM reports as active.
func (n *node) active() []string {
	n.t.Helper()
	var names []string
	for line := range strings.Lines(lvmByHand(n.t, "lvs", "--noheadings", "-o", "lv_name,lv_active", n.group)) {
		if name, state, _ := strings.Cut(strings.TrimSpace(line), " "); strings.TrimSpace(state) == "active" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// An administrator's volume and pool are to stay inactive; lvmd's own pool needs a repair.
func TestAtTheStartOnlyOurOwnVolumesAreActivated(t *testing.T) {
	n := newNode(t)
	n.config = "- {name: plain, default: true, volumeGroup: carve}\n" +
		"- {name: thin, volumeGroup: carve, type: thin, thin: {pool: carve-pool, size: 64Mi}}\n"
	n.keeps = []string{"carve-pool"}
	p := n.start()
	plain := p.create(create("pvc-plain", 16<<20, ""))
	thin := p.create(inClass(create("pvc-thin", 16<<20, ""), "thin"))
	lvmByHand(t, "lvcreate", "--yes", "--zero", "n", "--wipesignatures", "n", "--name", "theirs", "--size", "16m", n.group)
	lvmByHand(t, "lvcreate", "--yes", "--type", "thin-pool", "--poolmetadataspare", "n", "--name", "theirpool", "--size", "16m", n.group)
	pool := n.group + "/carve-pool"
	lvmByHand(t, "lvchange", "--setactivationskip", "y", pool)
	for _, c := range []struct {
		what string
		want []string
	}{
		{"while the pool is repaired", []string{plain.GetId()}},
		{"when it was repaired", []string{"carve-pool", plain.GetId(), thin.GetId()}},
	} {
		slices.Sort(c.want)
		if err := p.stop(); err != nil {
			t.Error(err)
		}
		lvmByHand(t, "vgchange", "--activate", "n", n.group)
		p = n.start()
		if got := n.active(); !slices.Equal(got, c.want) {
			t.Errorf("%s: active are %q, want %q", c.what, got, c.want)
		}
		inactive := slices.ContainsFunc(p.classNamed("thin").GetConditions(), func(c *lvmdv1.Condition) bool { return c.GetType() == "PoolInactive" })
		if want := !slices.Contains(c.want, "carve-pool"); inactive != want {
			t.Errorf("%s: the class reports an inactive pool: %t, want %t", c.what, inactive, want)
		}
		lvmByHand(t, "lvchange", "--setactivationskip", "n", pool)
	}
	lvmByHand(t, "lvremove", "--yes", n.group+"/theirs", n.group+"/theirpool")
	p.delete(plain.GetId())
	p.delete(thin.GetId())
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 })
}
