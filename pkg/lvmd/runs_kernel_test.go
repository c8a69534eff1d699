//go:build kernel

package lvmd_test

import (
	"testing"
	"time"
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

// wideNode has five disks, and one class with a layout over several of them.
func wideNode(t *testing.T, layout string) *node {
	n := newNode(t, spares(t, 64, 64, 64, 64, 64)...)
	n.config = layoutClass(layout, "default: true, ")
	return n
}

// live has an lvmd do everything that volumes go through.
func (s *scenario) live(p *process) {
	s.create(p, create("pvc-fs", 16<<20, "ext4"))
	s.create(p, create("pvc-raw", 8<<20, ""))
	s.expand(p, "pvc-raw", 16<<20)
	s.delete(p, "pvc-fs")
	s.create(p, create("pvc-kept", 8<<20, ""))
	s.clone(p, "pvc-copy", "pvc-kept")
}

// liveThin is what thin volumes and their snapshots go through.
func (s *scenario) liveThin(p *process) {
	s.create(p, create("pvc-kept", 8<<20, ""))
	s.snapshot(p, "snapshot", "pvc-kept")
	s.clone(p, "pvc-restored", "snapshot")
	s.clone(p, "pvc-clone", "pvc-kept")
	s.delete(p, "snapshot")
	s.expand(p, "pvc-clone", 16<<20)
	s.delete(p, "pvc-restored")
}

// liveMirrored is what RAID volumes go through.
func (s *scenario) liveMirrored(p *process) {
	s.create(p, create("pvc-kept", 8<<20, ""))
	s.expand(p, "pvc-kept", 16<<20)
	s.create(p, create("pvc-fs", 16<<20, "ext4"))
	s.delete(p, "pvc-fs")
}

func TestKilledBetweenTwoEffectsOnRealLVM(t *testing.T) {
	thickNode(t).killBetween(t, (*scenario).live, 3, 41)
}

func TestKilledBetweenTwoEffectsOnRealThinVolumes(t *testing.T) {
	poolNode(t).killBetween(t, (*scenario).liveThin, 3, 43)
}

func TestKilledBetweenTwoEffectsOnRealRAIDVolumes(t *testing.T) {
	mirrorNode(t).killBetween(t, (*scenario).liveMirrored, 2, 24)
}

// killBetween has an lvmd die at one place of a life after the other: at a few of
// the least that there are, or at all of them. How many there are depends on time: what
// is written to the journal at once is one place.
func (n *node) killBetween(t *testing.T, live func(*scenario, *process), few, least int) {
	t.Helper()
	p := n.start()
	all := p.available()
	p.kill()
	for number := range places(chance(t), few, least) {
		s := newScenario(n)
		p := n.startCrashing(number)
		live(s, p)
		for i := 0; i < 50 && !p.dead(100*time.Millisecond) && len(n.leftovers()) > len(s.kept)+len(s.snapshots); i++ {
		}
		p.kill()
		place := n.read("died")
		t.Logf("place %d: %s", number, place)
		p = n.start()
		s.check(p, all)
		p.kill()
		if t.Failed() {
			t.Fatalf("died at place %d, %q", number, place)
		}
		if noPlace(t, place, number, least) {
			return
		}
	}
}

// noPlace reports whether an lvmd survived that was to die at the place of the number,
// which was the name that it left: then there are no more places. It fails the test
// when there were to be more.
func noPlace(t *testing.T, place string, number, least int) bool {
	t.Helper()
	if place == "" && number <= least {
		t.Errorf("lvmd came past %d places to die at, want at least %d", number-1, least)
	}
	return place == ""
}
