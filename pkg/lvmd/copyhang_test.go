//go:build !kernel

package lvmd

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/waittest"
)

// hangingCopies fills the places for copies on an unresponsive disk. answer makes it respond,
// ended returns the results, and source can still be copied.
func hangingCopies(t *testing.T, more func(_ *daemon, o *Options)) (d *daemon, source string, answer func(), ended func() []error) {
	t.Helper()
	m := newMachine(t)
	d = m.start(t, more)
	var sources []string
	for _, name := range []string{"a", "b", "c"} {
		sources = append(sources, d.create(request(name, 1)).GetId())
	}
	answers, hanging := make(chan struct{}), atomic.Int32{}
	m.fake.BeforeZero = func(string, string, int64, int64) error {
		if hanging.Add(1) <= maxCopying {
			<-answers
		}
		return nil
	}
	var copies sync.WaitGroup
	errs := make([]error, maxCopying)
	for i := range errs {
		copies.Go(func() {
			_, errs[i] = d.client.CreateVolume(t.Context(), from(request("copy-"+sources[i], 2), sources[i]))
		})
	}
	waittest.Until(t, "all places for copies are taken", func() bool { return hanging.Load() >= maxCopying })
	return d, sources[maxCopying], func() { close(answers) }, func() []error { copies.Wait(); return errs }
}

func TestCopiesThatWaitForTheirDisksHoldUpNoOther(t *testing.T) {
	d, source, answer, ended := hangingCopies(t, func(_ *daemon, o *Options) { o.copyLook = time.Millisecond })
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Limit)
	defer cancel()
	if _, err := d.client.CreateVolume(ctx, from(request("other", 2), source)); err != nil {
		t.Errorf("another copy: %v", err)
	}
	answer()
	for _, err := range ended() {
		if err != nil {
			t.Errorf("a copy whose disk answers: %v", err)
		}
	}
	d.checkModel()
}

// More copies than may wait for a disk go to one of a group's two disks.
func TestCopiesToADiskThatDoesNotAnswerHoldUpNoneToOthers(t *testing.T) {
	const group = "second"
	m := newMachine(t)
	m.fake.AddGroupOf(group, testExtent, testTotal, testTotal)
	m.config += "- {name: second, volumeGroup: second}\n"
	on := func(volume, disk string) bool {
		segments, err := m.fake.Mapping(group, volume)
		return err == nil && segments[0].Areas[0].Device == "fake-pv-second-"+disk
	}
	answers, hanging := make(chan struct{}), atomic.Int32{}
	d := m.start(t, func(_ *daemon, o *Options) { o.copyLook = time.Millisecond })
	var sources []string // on the first disk
	for i := 0; len(sources) < 2*maxSameCopies+4; i++ {
		r := request(fmt.Sprintf("source-%d", i), 1)
		r.DeviceClass = group
		if id := d.create(r).GetId(); on(id, "0") {
			sources = append(sources, id)
		}
	}
	m.fake.BeforeZero = func(_, volume string, _, _ int64) error {
		if on(volume, "0") {
			hanging.Add(1)
			<-answers
		}
		return nil
	}
	answer := sync.OnceFunc(func() { close(answers) })
	t.Cleanup(answer) // before the daemon's end, which waits for it
	var copies sync.WaitGroup
	var done atomic.Int32
	for _, source := range sources {
		copies.Go(func() {
			r := from(request("copy-"+source, 2), source)
			r.DeviceClass = group
			if _, err := d.client.CreateVolume(t.Context(), r); err != nil {
				t.Errorf("%s: %v", r.GetName(), err)
			}
			done.Add(1)
		})
	}
	to := func(disk string) (copies int) {
		for _, v := range d.list() {
			if strings.HasPrefix(v.GetName(), "copy-") && on(v.GetId(), disk) {
				copies++
			}
		}
		return copies
	}
	waittest.Until(t, "LVM made all volumes", func() bool { return to("0")+to("1") == len(sources) })
	others := to("1")
	waittest.Until(t, "all copies to the second disk are made", func() bool { return int(done.Load()) == others },
		func() any { return fmt.Sprint(done.Load(), " of ", others) })
	if n := hanging.Load(); n != maxSameCopies {
		t.Errorf("%d copies wait for the first disk, want %d, of %d", n, maxSameCopies, len(sources)-others)
	}
	answer()
	copies.Wait()
}

func TestACopyWhoseDiskDoesNotAnswerFails(t *testing.T) {
	d, _, answer, ended := hangingCopies(t, func(_ *daemon, o *Options) { o.copyTimeout = time.Second })
	for _, err := range ended() {
		wantCode(t, err, codes.DeadlineExceeded, names.ReasonCommandTimedOut)
	}
	if n := d.creator.answering.Stuck(); n != maxCopying {
		t.Errorf("%d operations count as stuck, want %d", n, maxCopying)
	}
	answer()
	waittest.Until(t, "the copies are undone", func() bool { return d.available() == testTotal-3 && d.creator.answering.Stuck() == 0 })
	d.checkModel()
}
