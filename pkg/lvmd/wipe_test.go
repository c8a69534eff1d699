//go:build !kernel

package lvmd

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/reclaim"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

const policies = `
- name: local
  default: true
  volumeGroup: carve
- name: careless
  volumeGroup: carve
  wipe: none
- name: discarding
  volumeGroup: carve
  wipe: discard
`

// lvmd is killed when two of four chunks are wiped but only one is journaled.
func TestAWipeThatWasKilledGoesOnWhereTheJournalSays(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	v := d.create(request("a", testTotal))
	m.fill(t, v.GetId(), 0x5a)
	m.fake.BeforeZero = func(_, _ string, off, _ int64) error {
		if off == reclaim.WipeChunk {
			d.gate.crashNext("delete: chunk wiped")
		}
		return nil
	}
	d.delete(v.GetId())
	waittest.Until(t, "it has ended", d.gate.crashed.Load)
	d.kill()
	if n, _, err := m.fake.Traces(testGroup, v.GetId()); err != nil || int64(n)*4096 != testTotal*testExtent-2*reclaim.WipeChunk {
		t.Fatalf("%d blocks are left at the crash, error %v; want two chunks", n, err)
	}
	var zeroed []int64 // offsets
	m.fake.BeforeZero = func(_, _ string, off, _ int64) error {
		zeroed = append(zeroed, off)
		return nil
	}
	d = m.start(t, func(_ *daemon, o *Options) { o.wipeCheckpoint = 0 })
	waittest.Until(t, "it is gone", func() bool { return d.available() == testTotal })
	if want := []int64{reclaim.WipeChunk, 2 * reclaim.WipeChunk, 3 * reclaim.WipeChunk}; !slices.Equal(zeroed, want) {
		t.Errorf("zeroed at %d, want %d", zeroed, want)
	}
	all := d.create(request("b", testTotal))
	d.traces(all.GetId())
}

func TestNoGenerationSeesAnEarlierOne(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			generations(t, rand.New(rand.NewPCG(seed, 1)))
		})
	}
}

func generations(t *testing.T, r *rand.Rand) {
	m := newMachine(t)
	m.config = policies
	d := m.start(t)
	type held struct {
		id      string
		careful bool
	}
	var volumes []held
	pattern := byte(0)
	for i := range 300 {
		switch n := r.IntN(20); {
		case n < 9:
			req := request(fmt.Sprintf("v%d", i), 1+r.Int64N(12))
			careful := r.IntN(4) > 0
			if !careful {
				req.DeviceClass = []string{"careless", "discarding"}[r.IntN(2)]
			}
			resp, err := d.client.CreateVolume(t.Context(), req)
			if err != nil {
				continue
			}
			id := resp.GetVolume().GetId()
			if careful {
				d.traces(id)
			}
			pattern++
			m.fill(t, id, pattern|0x80)
			volumes = append(volumes, held{id, careful})
		case n < 15 && len(volumes) > 0:
			k := r.IntN(len(volumes))
			d.delete(volumes[k].id)
			volumes = append(volumes[:k], volumes[k+1:]...)
		case n == 15 && len(volumes) > 0:
			k := r.IntN(len(volumes))
			if m.fake.Remove(t.Context(), testGroup, []string{volumes[k].id}) == nil {
				volumes = append(volumes[:k], volumes[k+1:]...)
			}
		case n == 16:
			name := fmt.Sprintf("theirs%d", i)
			if m.fake.Create(t.Context(), lvm.CreateOptions{Group: testGroup, Volume: name, Extents: 1 + r.Int64N(6)}) == nil {
				m.fill(t, name, 0x7f)
				must.Succeed(t, m.fake.Remove(t.Context(), testGroup, []string{name}))
			}
		case n == 17:
			d.stop()
			d = m.start(t)
		case n == 18:
			time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
			d.kill()
			if r.IntN(3) == 0 {
				os.RemoveAll(filepath.Join(m.state, "journal.db"))
			}
			d = m.start(t)
			// Volumes deleted but not wiped when the journal was lost exist again: their owner
			// deletes them again.
			known := map[string]bool{}
			for _, v := range volumes {
				known[v.id] = true
			}
			for _, v := range d.list() {
				if !known[v.GetId()] {
					d.delete(v.GetId())
				}
			}
		}
		if t.Failed() {
			t.Fatalf("at step %d", i)
		}
	}
}

func TestAClassSaysHowItsVolumesAreWiped(t *testing.T) {
	for _, c := range []struct {
		wipe  string
		clean bool
	}{{"auto", true}, {"zero", true}, {"discard", false}, {"none", false}} {
		t.Run(c.wipe, func(t *testing.T) {
			m := newMachine(t)
			m.config = "- {name: local, default: true, volumeGroup: carve, wipe: " + c.wipe + "}\n"
			d := m.start(t)
			v := d.create(request("pvc-1", 8))
			must.Succeed(t, m.fake.Fill(testGroup, v.GetId(), 0x77))
			d.delete(v.GetId())
			waittest.Until(t, "the space is back", func() bool { return d.available() == testTotal })
			v = d.create(request("pvc-2", 8))
			if n, _, err := m.fake.Traces(testGroup, v.GetId()); err != nil || (n == 0) != c.clean {
				t.Errorf("%d blocks of the earlier volume, error %v", n, err)
			}
		})
	}
}

func TestAClassAtItsRateHoldsUpNoOther(t *testing.T) {
	m := newMachine(t)
	m.fake.RemoveGroup(testGroup)
	m.fake.AddGroup(testGroup, testExtent, 256)
	m.config = "- {name: local, default: true, volumeGroup: carve}\n- {name: slow, volumeGroup: carve, wipeRate: 1Mi}\n"
	d := m.start(t)
	// This takes longer than a test waits.
	throttled := request("throttled", 2*int64(waittest.Limit/time.Second)*(1<<20)/testExtent)
	throttled.DeviceClass = "slow"
	first, second := d.create(throttled), d.create(request("large", 100))
	d.delete(first.GetId())
	d.delete(second.GetId())
	waittest.Until(t, "the other class' volume is gone, and the slow one is still wiped", func() bool {
		return d.available() >= 256-throttled.GetRequiredBytes()/testExtent
	})
	if got := d.available(); got == 256 {
		t.Error("the slow class' volume is gone already")
	}
}

func TestALargeVolumeIsWipedBetweenSmallOnes(t *testing.T) {
	m := newMachine(t)
	proceed := make(chan struct{})
	var deleting atomic.Bool
	var mu sync.Mutex
	var order []string
	m.fake.BeforeZero = func(_, volume string, _, _ int64) error {
		if !deleting.Load() {
			return nil
		}
		<-proceed
		mu.Lock()
		defer mu.Unlock()
		order = append(order, volume)
		return nil
	}
	d := m.start(t)
	const small = 24
	large := d.create(request("large", 40)).GetId()
	var ids []string
	for i := range small {
		ids = append(ids, d.create(request(fmt.Sprint("small-", i), 1)).GetId())
	}
	deleting.Store(true)
	for _, id := range slices.Insert(ids, 1, large) {
		d.delete(id)
	}
	close(proceed)
	waittest.Until(t, "all space is back", func() bool { return d.available() == testTotal })
	// lvmd may choose the first chunks before the large volume is deleted.
	if first := slices.Index(order, large); first > 2*inventory.FairEvery {
		t.Errorf("the large volume's turn comes as number %d of %d", first, len(order))
	}
}

func TestAWipeKeepsToItsRate(t *testing.T) {
	m := newMachine(t)
	m.config = "- {name: local, default: true, volumeGroup: carve, wipeRate: 64Mi}\n"
	d := m.start(t)
	start := time.Now()
	d.delete(d.create(request("pvc-1", 8)).GetId())
	waittest.Until(t, "the space is back", func() bool { return d.available() == testTotal })
	// A burst of a tenth of a second is free. A busy machine may be slower.
	const rate = 64 << 20
	want := time.Duration(8*testExtent*int64(time.Second)/rate) - time.Second/10
	if took := time.Since(start); took < want {
		t.Errorf("it took %v, and takes %v at its rate", took, want)
	}
	d.checkClean()
}

func TestConditionWhileADiskRefusesTheWritesOfAWipe(t *testing.T) {
	m := newMachine(t)
	var refuses atomic.Bool
	m.fake.BeforeZero = func(string, string, int64, int64) error {
		if refuses.Load() {
			return unix.EIO
		}
		return nil
	}
	d := m.start(t)
	v := d.create(request("a", 4))
	refuses.Store(true)
	d.delete(v.GetId())
	waittest.Until(t, "the class says which volume waits", func() bool {
		return strings.Contains(d.message("DeletionWaits"), "a disk refuses writes") && strings.Contains(d.message("DeletionWaits"), v.GetId())
	})
	d.checkModel()
	refuses.Store(false)
	waittest.Until(t, "the space is free", func() bool { return d.available() == testTotal && d.message("DeletionWaits") == "" })
}
