//go:build kernel

package lvmd_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/waittest"
)

// Each generation reuses the space of the one before the last. Unwiped classes beside them may
// show and leave anything.
func TestNoGenerationSeesAnEarlierOneWhateverItsLayout(t *testing.T) {
	n := newNode(t, spares(t, 128, 128, 128, 128, 128)...)
	n.keeps = []string{"carve-pool"}
	n.config = layoutClasses() +
		"- {name: thin, volumeGroup: carve, type: thin, thin: {pool: carve-pool, size: 32Mi}}\n" +
		"- {name: discard, volumeGroup: carve, wipe: discard}\n" +
		"- {name: none, volumeGroup: carve, wipe: none}\n"
	noGenerationSeesAnEarlierOne(t, n, append([]string{"thin", "discard", "none"}, layoutNames...), "linear")
}

func noGenerationSeesAnEarlierOne(t *testing.T, n *node, classes []string, whole string) {
	t.Helper()
	p := n.start()
	freeSpace := func() (all []int64) {
		for _, c := range p.state().GetClasses() {
			all = append(all, c.GetAvailableBytes())
		}
		return all
	}
	all := fmt.Sprint(freeSpace())
	// Classes that are slow, or that only leave old data, skip generations.
	generations := 4
	every := map[string]int{"raid10": 2, "raid6": 2, "discard": 2, "none": 2}
	if soaking {
		generations = 16
	}
	random := chance(t)
	type filled struct {
		*lvmdv1.Volume
		pattern byte
	}
	var before []filled
	for generation := range generations {
		var now []filled
		for _, i := range random.Perm(len(classes)) {
			if generation%max(1, every[classes[i]]) != 0 {
				continue
			}
			name := fmt.Sprintf("pvc-%s-%d", classes[i], generation)
			v := p.create(inClass(create(name, int64(2+generation%2)<<22, ""), classes[i]))
			if classes[i] != "discard" && classes[i] != "none" {
				Map(t, v)
			}
			now = append(now, filled{v, byte(1 + generation*len(classes) + i)})
			fill(t, v, now[len(now)-1].pattern)
		}
		for _, v := range before {
			checkFilled(t, v.Volume, v.pattern, v.GetSizeBytes())
			p.delete(v.GetId())
		}
		waittest.Until(t, "what was deleted is gone", func() bool {
			return !slices.ContainsFunc(before, func(v filled) bool {
				_, err := os.Stat(v.GetDevicePath())
				return err == nil
			})
		})
		if t.Failed() {
			t.FailNow()
		}
		before = now
	}
	for _, v := range before {
		p.delete(v.GetId())
	}
	waittest.Until(t, "the space is back", func() bool { return fmt.Sprint(freeSpace()) == all })
	Map(t, p.create(inClass(create("pvc-all-"+whole, p.classNamed(whole).GetMaximumVolumeSizeBytes(), ""), whole)))
}
