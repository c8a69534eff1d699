//go:build !kernel

package lvmd

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/waittest"
)

// hangingCopies begins as many copies as run at once, whose disk does not answer. answer has it answer,
// ended returns how they ended, and source is a volume that can be copied.
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
