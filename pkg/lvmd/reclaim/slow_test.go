package reclaim

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// left names the volumes that LVM has.
func (n *node) left() (names []string) {
	n.t.Helper()
	for _, v := range must.Get(n.lvm.Scan(n.t.Context(), []string{"carve"}))(n.t)[0].Volumes {
		names = append(names, v.Name)
	}
	slices.Sort(names)
	return names
}

// hang makes the disks of volumes hang until answer is called, without which no run of the node
// ends. waiting returns the volumes whose wipe waits.
func (n *node) hang(hangs func(volume string) bool) (waiting func() []string, answer func()) {
	var mu sync.Mutex
	var begun []string
	answers := make(chan struct{})
	n.lvm.BeforeZero = func(_, volume string, _, _ int64) error {
		if hangs(volume) {
			mu.Lock()
			begun = append(begun, volume)
			mu.Unlock()
			<-answers
		}
		return nil
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Sorted(slices.Values(begun))
	}, sync.OnceFunc(func() { close(answers) })
}

// Of two disks with two volumes each, one hangs: no extent on it is given out.
func TestADiskThatDoesNotAnswerHoldsUpTheWipesOfItsOwnVolumes(t *testing.T) {
	n := newNodeOf(t, []int64{2 * size, 2 * size}, 4, "")
	n.slowAfter = time.Millisecond
	var onFirst []string
	for i := range 4 {
		if disk := must.Get(n.lvm.Mapping("carve", id(i)))(t)[0].Areas[0].Device; disk == "fake-pv-carve-0" {
			onFirst = append(onFirst, id(i))
		}
	}
	waiting, answer := n.hang(func(volume string) bool { return slices.Contains(onFirst, volume) })
	m, _ := n.start(func(*inventory.Inventory, string) {})
	defer answer()
	waittest.Until(t, "what lies on the second disk is removed", func() bool { return slices.Equal(n.left(), onFirst) },
		func() any { return n.left() })
	waittest.Until(t, "one wipe waits for the first disk", func() bool { return len(waiting()) == 1 }, func() any { return waiting() })
	for _, v := range m.Inspect() {
		if slices.Contains(onFirst, v.Record.ID) && v.State == inventory.Wiped {
			t.Errorf("a volume is wiped whose disk does not answer: %+v", v.Record)
		}
	}
	answer()
	n.reclaimed(m)
}

// One volume hangs, and another one's device has no table.
func TestAVolumeOnNoDiskWaitsForNone(t *testing.T) {
	n := newNode(t, 2, "")
	n.slowAfter, n.lvm.bare = time.Millisecond, id(1)
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	_, answer := n.hang(func(volume string) bool {
		if volume == id(0) {
			begin()
		}
		<-begun
		return volume == id(0)
	})
	n.start(func(*inventory.Inventory, string) {})
	defer answer()
	waittest.Until(t, "it is removed", func() bool { return slices.Equal(n.left(), []string{id(0)}) }, func() any { return n.left() })
}

func TestNotMoreWipesWaitThanMay(t *testing.T) {
	const volumes = inventory.MaxSlow + 3
	n := newNodeOf(t, slices.Repeat([]int64{size}, volumes), volumes, "")
	n.slowAfter = time.Millisecond
	waiting, answer := n.hang(func(string) bool { return true })
	m, stop := n.start(func(*inventory.Inventory, string) {})
	defer answer()
	waittest.Until(t, "as many wait as may", func() bool { return len(waiting()) == inventory.MaxSlow })
	if left := n.left(); len(left) != volumes {
		t.Errorf("left are %v", left)
	}
	answer()
	n.reclaimed(m)
	stop()
	if w := waiting(); len(slices.Compact(w)) != volumes {
		t.Errorf("wiped were %v", w)
	}
}

// A scan loses a tombstone that an administrator renamed, while a step waits for the disk.
func TestStepKeepsItsDeviceUntilItEnds(t *testing.T) {
	n := newNode(t, 1, "")
	n.checkpoint = WipeChunk
	waiting, answer := n.hang(func(string) bool { return true })
	m, stop := n.start(func(*inventory.Inventory, string) {})
	defer answer()
	waittest.Until(t, "a step waits for the disk", func() bool { return len(waiting()) == 1 })
	must.Succeed(t, n.lvm.Rename(t.Context(), "carve", id(0), "renamed"))
	n.scan()
	if v := m.Volume(id(0)); v != nil || n.lvm.closes.Load() != 0 {
		t.Errorf("after the scan: tombstone %v, devices closed: %d, want none", v, n.lvm.closes.Load())
	}
	answer()
	waittest.Until(t, "the step closes its device", func() bool { return n.lvm.closes.Load() == 1 })
	stop()
	if did, want := n.lvm.notes(), []string{"tag 1 carve.deleted", "zero 0+64", "sync"}; !slices.Equal(did, want) || n.lvm.opens.Load() != 1 {
		t.Errorf("done was %q, devices opened: %d, want %q and one", did, n.lvm.opens.Load(), want)
	}
	if left := n.left(); !slices.Equal(left, []string{"renamed"}) {
		t.Errorf("LVM has %v, want the renamed volume", left)
	}
	if records := must.Get(n.journal.Volumes())(t); len(records) != 0 || n.lvm.closes.Load() != 1 {
		t.Errorf("the journal has %v, devices closed: %d, want none and one", records, n.lvm.closes.Load())
	}
}
