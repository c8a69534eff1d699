//go:build kernel

package lvmd_test

import (
	"slices"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/waittest"
)

// Machines on which lvmd is killed.

func thickNode(t *testing.T) *node { return newNode(t) }

func poolNode(t *testing.T) *node {
	n := thinNode(t, "overprovisioning: 4, dataThreshold: 100%")
	n.keeps = []string{"carve-pool"}
	return n
}

func mirrorNode(t *testing.T) *node {
	n := newNode(t, "/dev/vdb", "/dev/vdc")
	n.config = "- {name: raid1, default: true, volumeGroup: carve, type: raid1}\n"
	return n
}

func wideNode(t *testing.T, layout string) *node {
	n := newNode(t, spares(t, 64, 64, 64, 64, 64)...)
	n.config = layoutClass(layout, "default: true, ")
	return n
}

func (s *scenario) runThick(p *process) {
	s.create(p, create("pvc-fs", 16<<20, "ext4"))
	s.create(p, create("pvc-raw", 8<<20, ""))
	s.expand(p, "pvc-raw", 16<<20)
	s.delete(p, "pvc-fs")
	s.create(p, create("pvc-kept", 8<<20, ""))
	s.clone(p, "pvc-copy", "pvc-kept")
}

func (s *scenario) runThin(p *process) {
	s.create(p, create("pvc-kept", 8<<20, ""))
	s.snapshot(p, "snapshot", "pvc-kept")
	s.clone(p, "pvc-restored", "snapshot")
	s.clone(p, "pvc-clone", "pvc-kept")
	s.delete(p, "snapshot")
	s.expand(p, "pvc-clone", 16<<20)
	s.delete(p, "pvc-restored")
}

func (s *scenario) runMirrored(p *process) {
	s.create(p, create("pvc-kept", 8<<20, ""))
	s.expand(p, "pvc-kept", 16<<20)
	s.create(p, create("pvc-fs", 16<<20, "ext4"))
	s.delete(p, "pvc-fs")
}

// Crash points that every run passes, in the order of the operations.
var (
	creationPlaces  = []string{"create: intent written", "create: carved", "create: formatted", "create: ready"}
	expansionPlaces = []string{"expand: admitted", "expand: extension made", "expand: extension zeroed", "expand: grown", "expand: extension removed"}
	deletionPlaces  = []string{"delete: tombstone written", "delete: marked", "delete: wiped", "delete: removed"}
	journalPlaces   = []string{"journal: before a commit", "journal: after a commit"}
)

func TestKilledBetweenTwoEffectsOnRealLVM(t *testing.T) {
	thickNode(t).killBetween(t, (*scenario).runThick, 3, slices.Concat(slices.Repeat(creationPlaces, 3), slices.Repeat(journalPlaces, 4), slices.Repeat([]string{"create: untagged"}, 3),
		expansionPlaces, deletionPlaces, []string{"delete: chunk wiped", "clone: chunk copied", "clone: copied"}))
}

func TestKilledBetweenTwoEffectsOnRealThinVolumes(t *testing.T) {
	poolNode(t).killBetween(t, (*scenario).runThin, 3, slices.Concat(creationPlaces, slices.Repeat([]string{"create: intent written"}, 3), slices.Repeat(journalPlaces, 4),
		[]string{"create: untagged later", "expand: admitted", "snapshot: tombstone written", "delete: chunk unmapped"}, slices.Repeat(deletionPlaces[1:], 2)))
}

func TestKilledBetweenTwoEffectsOnRealRAIDVolumes(t *testing.T) {
	mirrorNode(t).killBetween(t, (*scenario).runMirrored, 2, slices.Concat(slices.Repeat(creationPlaces, 2), slices.Repeat(journalPlaces, 2),
		expansionPlaces, deletionPlaces, []string{"create: untagged", "delete: chunk wiped"}))
}

func (n *node) killBetween(t *testing.T, run func(*scenario, *process), few int, places []string) {
	t.Helper()
	p := n.start()
	all := p.available()
	p.kill()
	n.eachPlace(t, few, places, func(_ int, p *process) string {
		s := newScenario(n)
		run(s, p)
		place := s.end(p)
		p = n.start()
		s.check(p, all)
		p.kill()
		// Space that lvmd wiped counts as zero until another program changes the group. When
		// soaking, soon no expansion would zero anything.
		lvmByHand(t, "vgchange", "--addtag", "by-hand", n.group)
		lvmByHand(t, "vgchange", "--deltag", "by-hand", n.group)
		return place
	})
}

// eachPlace takes a few random points of those named, or, when soaking, all that exist. A name
// that repeats stands for the second passage. run returns the point of the crash, or "" if lvmd
// did not crash.
func (n *node) eachPlace(t *testing.T, few int, named []string, run func(number int, p *process) (place string)) {
	t.Helper()
	missed := map[string]bool{}
	for _, name := range named {
		missed[name] = true
	}
	for number := range places(chance(t), few, len(named)) {
		name, times := "", number
		if !soaking {
			name, times = named[number-1], 0
			for _, other := range named[:number] {
				if other == name {
					times++
				}
			}
		}
		place := run(number, n.startCrashingAt(name, times))
		t.Logf("place %d: %s", number, place)
		delete(missed, place)
		switch {
		case t.Failed():
			t.Fatalf("crashed at place %d, %q", number, place)
		case place == "" && !soaking:
			t.Fatalf("lvmd did not come to %q %d times", name, times)
		case place == "":
			if len(missed) > 0 {
				t.Errorf("lvmd came past %d crash points, and to none of %v", number-1, missed)
			}
			return
		}
	}
}

// end also returns once lvmd is idle with possibly no crash point left.
func (s *scenario) end(p *process) (place string) {
	s.n.t.Helper()
	waittest.Until(s.n.t, "lvmd has ended", func() bool {
		done := soaking && len(s.n.leftovers()) <= len(s.kept)+len(s.snapshots)
		return p.hasEnded(100*time.Millisecond) || done && !p.hasEnded(time.Second)
	})
	p.kill()
	return s.n.read("crashed")
}
