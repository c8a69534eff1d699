package driver_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/command"
	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

var dirtyExt4 = filesystem.Info{Type: filesystem.Ext4, NeedsCheck: true}

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
			f.fileSystems.Set(v.GetDevicePath(), dirtyExt4)
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

// Each set of disks has more volumes than may be checked there at once; one
// volume is on another disk of the group.
func TestDisksThatDoNotAnswerHoldUpTheChecksOfNoOther(t *testing.T) {
	onDisks := func(v *lvmdv1.Volume, where string) { v.Disks = where }
	for name, c := range map[string]struct {
		needs      int64
		move       func(v *lvmdv1.Volume, where string)
		sets, each int32
	}{
		"usual checks":                     {needs: 1 << 20, move: onDisks, sets: 3, each: 2},
		"checks that take more memory":     {needs: 100 << 20, move: onDisks, sets: 1, each: 1},
		"an lvmd that does not name disks": {needs: 1 << 20, move: func(v *lvmdv1.Volume, where string) { v.VgName = where }, sets: 3, each: 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.fileSystems.CheckNeeds = c.needs
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
			dirty := func(v *lvmdv1.Volume, where string) *lvmdv1.Volume {
				f.alter(v, func(v *lvmdv1.Volume) { c.move(v, where) })
				f.fileSystems.Set(v.GetDevicePath(), dirtyExt4)
				return v
			}
			dirty(other, "other")
			var staging sync.WaitGroup
			for i := range c.sets * (c.each + 1) {
				v := dirty(f.volume(fmt.Sprintf("v%d", i), "ext4"), fmt.Sprintf("set%d", i%c.sets))
				staging.Go(func() {
					if err := f.stage(v, filesystemAccess(writer)); err != nil {
						t.Errorf("stage %s: %v", v.GetId(), err)
					}
				})
			}
			want := c.sets * c.each
			waittest.Until(t, "all sets of disks have their share of checks, which wait", func() bool { return waiting.Load() == want })
			for range 3 { // more than one set may have at once, one after the other
				must.Succeed(t, f.stage(other, filesystemAccess(writer)))
				must.Succeed(t, f.unstage(other))
				f.fileSystems.Set(other.GetDevicePath(), dirtyExt4)
			}
			if n := waiting.Load(); n != want {
				t.Errorf("%d checks wait for their disks, want %d on each of %d sets", n, c.each, c.sets)
			}
			close(answers)
			staging.Wait()
		})
	}
}

func TestADeviceThatBecomesAnotherVolumesDuringTheWaitIsNotChecked(t *testing.T) {
	f := newFixture(t)
	answers, checking := make(chan struct{}), atomic.Int32{}
	f.fileSystems.CheckingWithin = func(context.Context, string, filesystem.CheckOptions) {
		checking.Add(1)
		<-answers
	}
	var others sync.WaitGroup
	for i := range 2 { // the limit for the same disks
		v := f.volume(fmt.Sprintf("other%d", i), "ext4")
		f.fileSystems.Set(v.GetDevicePath(), dirtyExt4)
		others.Go(func() {
			if err := f.stage(v, filesystemAccess(writer)); err != nil {
				t.Errorf("stage %s: %v", v.GetId(), err)
			}
		})
	}
	waittest.Until(t, "two are being checked", func() bool { return checking.Load() == 2 })
	v := f.volume("a", "ext4")
	f.fileSystems.Set(v.GetDevicePath(), dirtyExt4)
	waits, done := make(chan struct{}), make(chan error, 1)
	looked := sync.OnceFunc(func() { close(waits) })
	f.fileSystems.Probing = func(device string) {
		if device == v.GetDevicePath() {
			looked() // It needs a check, and waits for the others.
		}
	}
	go func() { done <- f.stage(v, filesystemAccess(writer)) }()
	<-waits
	f.mounts.AddNode("/dev/carve/cv00000000000000000000000009", deviceOf(v), gib)
	close(answers)
	others.Wait()
	wantError(t, <-done, codes.Unavailable, "is not volume "+v.GetId()+" any more")
	if n := checking.Load(); n != 2 {
		t.Errorf("%d were checked, want 2", n)
	}
}

// Each check waits for a disk of its own.
func TestSoManyChecksHoldMemoryAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		needs int64
		most  int32
	}{"usual checks": {1 << 20, 8}, "checks that take more memory": {100 << 20, 2}} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.fileSystems.CheckNeeds = c.needs
			answers := make(chan struct{})
			var mu sync.Mutex
			var holding, most int32
			var looked atomic.Int32
			held := func(change int32) int32 {
				mu.Lock()
				defer mu.Unlock()
				holding += change
				most = max(most, holding)
				return holding
			}
			f.fileSystems.Probing = func(string) { looked.Add(1) }
			f.fileSystems.CheckingWithin = func(_ context.Context, _ string, o filesystem.CheckOptions) {
				o.Waiting(true)
				held(1)
				<-answers
				held(-1)
				o.Waiting(false)
			}
			var staging sync.WaitGroup
			begin := func(name string) {
				v := f.alter(f.volume(name, "ext4"), func(v *lvmdv1.Volume) { v.Disks = name })
				f.fileSystems.Set(v.GetDevicePath(), dirtyExt4)
				staging.Go(func() {
					if err := f.stage(v, filesystemAccess(writer)); err != nil {
						t.Errorf("stage %s: %v", name, err)
					}
				})
			}
			for i := range c.most {
				begin(fmt.Sprintf("v%d", i))
			}
			waittest.Until(t, "so many checks wait", func() bool { return held(0) == c.most })
			before := looked.Load()
			for i := range 3 {
				begin(fmt.Sprintf("more%d", i))
			}
			waittest.Until(t, "more file systems were found to need a check", func() bool { return looked.Load() == before+3 })
			close(answers)
			staging.Wait()
			if most != c.most {
				t.Errorf("%d checks held memory at once, want %d", most, c.most)
			}
		})
	}
}

// As many checks hang as may run on the same disks.
func TestACheckThatIsKilledAndNotGoneKeepsItsPlace(t *testing.T) {
	f := newFixture(t)
	gone := make(chan struct{})
	dirty := func(name, disks string) *lvmdv1.Volume {
		v := f.alter(f.volume(name, "ext4"), func(v *lvmdv1.Volume) { v.Disks = disks })
		f.fileSystems.Set(v.GetDevicePath(), dirtyExt4)
		return v
	}
	a, b := dirty("a", "bad"), dirty("b", "bad")
	f.fileSystems.Checking = func(_ context.Context, device string) error {
		if device == a.GetDevicePath() || device == b.GetDevicePath() {
			return fmt.Errorf("check %s: %w", device, &command.KilledError{Cause: context.DeadlineExceeded, Stuck: true, Gone: gone})
		}
		return nil
	}
	for _, v := range []*lvmdv1.Volume{a, b} {
		if err := f.stage(v, filesystemAccess(writer)); err == nil {
			t.Errorf("volume %s was staged, whose check was killed", v.GetId())
		}
	}
	behind, beside := dirty("behind", "bad"), dirty("beside", "good")
	looked := make(chan struct{}, 1)
	f.fileSystems.Probing = func(device string) {
		if device == behind.GetDevicePath() {
			select {
			case looked <- struct{}{}:
			default:
			}
		}
	}
	staged := make(chan error, 1)
	go func() { staged <- f.stage(behind, filesystemAccess(writer)) }()
	<-looked
	must.Succeed(t, f.stage(beside, filesystemAccess(writer)))
	if n := len(f.fileSystems.CheckMemory(behind.GetDevicePath())); n != 0 {
		t.Errorf("%d checks began on disks where killed ones take all places", n)
	}
	close(gone)
	must.Succeed(t, <-staged)
}

func TestChecksOfLargeFileSystemsWaitForEachOtherAndHoldUpNoOthers(t *testing.T) {
	f := newFixture(t)
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
		f.fileSystems.Set(v.GetDevicePath(), dirtyExt4)
		staging.Go(func() {
			if err := f.stage(v, filesystemAccess(writer)); err != nil {
				t.Errorf("stage %s: %v", name, err)
			}
		})
	}
	// A check that needs little memory runs meanwhile.
	small := f.volume("small", "ext4")
	f.fileSystems.Set(small.GetDevicePath(), dirtyExt4)
	f.fileSystems.SetCheckNeeds(small.GetDevicePath(), 1<<20)
	must.Succeed(t, f.stage(small, filesystemAccess(writer)))
	close(proceed)
	staging.Wait()
	if most != 1 {
		t.Errorf("%d large file systems were checked at a time, want 1", most)
	}
}
