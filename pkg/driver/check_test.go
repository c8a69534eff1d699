package driver_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestAFileSystemIsCheckedWithinTheMemoryThatThereIsForIt(t *testing.T) {
	for name, c := range map[string]struct {
		needs, allowed int64
		want           []int64
		fails          bool
	}{
		"a usual one":                         {needs: 1 << 20, want: []int64{32 << 20}},
		"a large one gets more":               {needs: 100 << 20, want: []int64{32 << 20, driver.DefaultCheckMemory}},
		"one that is too large is refused":    {needs: 1 << 30, want: []int64{32 << 20, driver.DefaultCheckMemory}, fails: true},
		"one for which there is enough":       {needs: 1 << 30, allowed: 2 << 30, want: []int64{32 << 20, 2 << 30}},
		"where there is less than the usual":  {needs: 1 << 20, allowed: 8 << 20, want: []int64{8 << 20}},
		"where there is less than it needs":   {needs: 16 << 20, allowed: 8 << 20, want: []int64{8 << 20}, fails: true},
		"where there is no more than usually": {needs: 64 << 20, allowed: 32 << 20, want: []int64{32 << 20}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.machine.CheckMemory = c.allowed
			f.restart()
			v := f.volume("a", "ext4")
			f.fileSystems.Set(v.GetDevicePath(), filesystem.Info{Type: filesystem.Ext4, NeedsCheck: true})
			f.fileSystems.CheckNeeds = c.needs
			err := f.stage(v, filesystemAccess(writer))
			if c.fails {
				wantError(t, err, codes.FailedPrecondition, "--check-memory")
				f.wantLayers(0)
			} else {
				must.Succeed(t, err)
			}
			got := f.fileSystems.CheckMemory(v.GetDevicePath())
			if len(got) != len(c.want) || got[0] != c.want[0] || got[len(got)-1] != c.want[len(c.want)-1] {
				t.Errorf("checked with %v bytes, want %v", got, c.want)
			}
		})
	}
}

// TestVolumeGroupsThatDoNotAnswerHoldUpTheChecksOfNoOther has more of them than there are checks at
// once.
func TestVolumeGroupsThatDoNotAnswerHoldUpTheChecksOfNoOther(t *testing.T) {
	for name, needs := range map[string]int64{"usual checks": 1 << 20, "checks that take more memory": 100 << 20} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.fileSystems.CheckNeeds = needs
			answers, waiting := make(chan struct{}), atomic.Int32{}
			other := f.volume("other", "ext4")
			f.fileSystems.CheckingWithin = func(_ context.Context, device string, o filesystem.CheckOptions) {
				if device != other.GetDevicePath() {
					o.Waiting(true)
					waiting.Add(1)
					<-answers
					o.Waiting(false)
				}
			}
			dirty := func(v *lvmdv1.Volume, group string) *lvmdv1.Volume {
				f.alter(v, func(v *lvmdv1.Volume) { v.VgName = group })
				f.fileSystems.Set(v.GetDevicePath(), filesystem.Info{Type: filesystem.Ext4, NeedsCheck: true})
				return v
			}
			dirty(other, "other")
			const groups, each = 5, 3
			var staging sync.WaitGroup
			for i := range groups * each {
				v := dirty(f.volume(fmt.Sprintf("v%d", i), "ext4"), fmt.Sprintf("group%d", i%groups))
				staging.Go(func() {
					if err := f.stage(v, filesystemAccess(writer)); err != nil {
						t.Errorf("stage %s: %v", v.GetId(), err)
					}
				})
			}
			share := int32(2)
			if needs > 32<<20 {
				share = 1
			}
			waittest.Until(t, "every group has its share of checks, which wait for their disks", func() bool { return waiting.Load() == groups*share })
			for range 3 { // more of them than one group may have at once, one after the other
				must.Succeed(t, f.stage(other, filesystemAccess(writer)))
				must.Succeed(t, f.unstage(other))
				f.fileSystems.Set(other.GetDevicePath(), filesystem.Info{Type: filesystem.Ext4, NeedsCheck: true})
			}
			if n := waiting.Load(); n != groups*share {
				t.Errorf("%d checks wait for their disks, want %d of each of %d groups", n, share, groups)
			}
			close(answers)
			staging.Wait()
		})
	}
}

// TestChecksInOneVolumeGroupHoldUpNoOther has a disk that does not answer the checks of its
// volumes' file systems.
func TestChecksInOneVolumeGroupHoldUpNoOther(t *testing.T) {
	f := newFixture(t)
	dirty := filesystem.Info{Type: filesystem.Ext4, NeedsCheck: true}
	answers, waiting := make(chan struct{}), atomic.Int32{}
	other := f.volume("other", "ext4")
	f.alter(other, func(v *lvmdv1.Volume) { v.VgName = "other" })
	f.fileSystems.Set(other.GetDevicePath(), dirty)
	f.fileSystems.CheckingWithin = func(_ context.Context, device string, _ filesystem.CheckOptions) {
		if device != other.GetDevicePath() {
			waiting.Add(1)
			<-answers
		}
	}
	var staging sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d"} {
		v := f.volume(name, "ext4")
		f.fileSystems.Set(v.GetDevicePath(), dirty)
		staging.Go(func() {
			if err := f.stage(v, filesystemAccess(writer)); err != nil {
				t.Errorf("stage %s: %v", name, err)
			}
		})
	}
	waittest.Until(t, "checks wait for the disk", func() bool { return waiting.Load() > 1 })
	if err := f.stage(other, filesystemAccess(writer)); err != nil {
		t.Errorf("in another volume group: %v", err)
	}
	close(answers)
	staging.Wait()
}

func TestChecksOfLargeFileSystemsWaitForEachOtherAndHoldUpNoOthers(t *testing.T) {
	f := newFixture(t)
	dirty := filesystem.Info{Type: filesystem.Ext4, NeedsCheck: true}
	proceed := make(chan struct{})
	var mu sync.Mutex
	large, most := 0, 0
	f.fileSystems.CheckNeeds = 100 << 20
	f.fileSystems.CheckingWithin = func(_ context.Context, _ string, o filesystem.CheckOptions) {
		if o.Memory < driver.DefaultCheckMemory {
			return
		}
		mu.Lock()
		large++
		most = max(most, large)
		mu.Unlock()
		<-proceed
		mu.Lock()
		large--
		mu.Unlock()
	}
	var staging sync.WaitGroup
	for _, name := range []string{"a", "b", "c"} {
		v := f.volume(name, "ext4")
		f.fileSystems.Set(v.GetDevicePath(), dirty)
		staging.Go(func() {
			if err := f.stage(v, filesystemAccess(writer)); err != nil {
				t.Errorf("stage %s: %v", name, err)
			}
		})
	}
	// One that needs no more than most is checked meanwhile.
	small := f.volume("small", "ext4")
	f.fileSystems.Set(small.GetDevicePath(), dirty)
	f.fileSystems.SetCheckNeeds(small.GetDevicePath(), 1<<20)
	must.Succeed(t, f.stage(small, filesystemAccess(writer)))
	close(proceed)
	staging.Wait()
	if most != 1 {
		t.Errorf("%d large file systems were checked at a time, want 1", most)
	}
}
