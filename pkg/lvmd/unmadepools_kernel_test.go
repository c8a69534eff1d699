//go:build kernel

package lvmd_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// The group lacks space for a new class's pool, and an administrator's pool for another class
// would show old data.
func TestRealPoolsThatCannotBeUsedStopNoOtherClass(t *testing.T) {
	n := newNode(t)
	n.otherGroup(t, "/dev/vdc")
	lvmByHand(t, "lvcreate", "--yes", "--type", "thin-pool", "--extents", "10%VG", "--zero", "n", "--name", "stale-pool", n.group)
	lvmByHand(t, "lvchange", "--errorwhenfull", "y", n.group+"/stale-pool")
	lvmByHand(t, "lvcreate", "--yes", "--extents", "60%VG", "--name", "theirs", n.group)
	n.config += "- {name: new, volumeGroup: carve, type: thin, thin: {pool: new-pool, size: 50%}}\n" +
		"- {name: stale, volumeGroup: carve, type: thin, thin: {pool: stale-pool, size: 10%}}\n"
	n.keeps = []string{"new-pool", "stale-pool", "theirs"}
	p := n.start()
	served := func(class string) {
		t.Helper()
		p.delete(p.create(inClass(create("pvc-"+class, 8<<20, ""), class)).GetId())
	}
	message := func(class, kind string) string {
		var all []string
		for _, c := range p.classNamed(class).GetConditions() {
			if c.GetType() == kind {
				all = append(all, c.GetMessage())
			}
		}
		return strings.Join(all, "; ")
	}
	for _, c := range []struct{ class, kind, want string }{
		{"new", "PoolMissing", "deviceClasses[2].thin.size"},
		{"stale", "PoolKeepsOldData", "lvchange --zero y carve/stale-pool"},
	} {
		if why := message(c.class, c.kind); !strings.Contains(why, c.want) || p.classNamed(c.class).GetAvailableBytes() != 0 {
			t.Errorf("the condition %s of class %s is %q, want one with %q, and no space", c.kind, c.class, why, c.want)
		}
		_, err := p.client.CreateVolume(t.Context(), inClass(create("pvc-"+c.class, 8<<20, ""), c.class))
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a volume of class %s: error %v, want ResourceExhausted", c.class, err)
		}
	}
	served("local")
	served("other")
	for _, class := range []string{"local", "other"} {
		if found := p.classNamed(class).GetConditions(); len(found) > 0 {
			t.Errorf("class %s has the conditions %v", class, found)
		}
	}

	lvmByHand(t, "lvremove", "--yes", "carve/theirs")
	lvmByHand(t, "lvchange", "--zero", "y", "carve/stale-pool")
	for _, class := range []string{"new", "stale"} {
		waittest.Until(t, "class "+class+" can be used", func() bool {
			c := p.classNamed(class)
			return c.GetAvailableBytes() > 0 && len(c.GetConditions()) == 0
		}, func() any { return p.classNamed(class) })
		served(class)
	}
	waittest.Until(t, "nothing but the pools is left", func() bool { return len(n.leftovers()) == 0 })
	pools := strings.Fields(lvmByHand(t, "lvs", "--noheadings", "-o", "lv_name", n.group))
	if slices.Sort(pools); !slices.Equal(pools, []string{"new-pool", "stale-pool"}) {
		t.Errorf("the group has %q", pools)
	}
	must.Succeed(t, p.stop())
}
