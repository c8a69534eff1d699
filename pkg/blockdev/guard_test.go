package blockdev

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carve-csi/carve/pkg/waittest"
)

func TestADeadDiskIsFlushedOnceHoweverOftenItIsTried(t *testing.T) {
	answered := make(chan struct{}, 1)
	g := Guard{Answered: func() { answered <- struct{}{} }}
	asked, answers := make(chan string, 10), make(chan error)
	flush := func(path string) error {
		asked <- path
		if path == "/dev/dead" {
			return <-answers
		}
		return nil
	}
	// The wait ends when the disk has been asked.
	given, give := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { first <- g.Each(given, []string{"/dev/dead"}, flush) }()
	<-asked
	if n := g.Stuck(); n != 0 {
		t.Errorf("stuck, while a caller waits: %d, want 0", n)
	}
	give()
	if err := <-first; !errors.Is(err, ErrTimedOut) || !errors.Is(err, context.Canceled) {
		t.Errorf("a flush that was not waited for: %v, want ErrTimedOut by cancellation", err)
	}
	for range 3 {
		if err := g.Each(t.Context(), []string{"/dev/good", "/dev/dead"}, flush); !errors.Is(err, ErrTimedOut) {
			t.Errorf("another flush of a dead disk: %v, want ErrTimedOut at once", err)
		}
	}
	if err := g.Each(t.Context(), []string{"/dev/good"}, flush); err != nil {
		t.Errorf("a flush of another disk: %v", err)
	}
	if n := len(asked); n != 1 {
		t.Errorf("disks are flushed %d times more, want once, the good one", n)
	}
	if n := g.Stuck(); n != 1 {
		t.Errorf("stuck: %d, want 1", n)
	}
	answers <- nil
	waittest.Until(t, "the disk is known to answer", func() bool { return len(answered) == 1 })
	if n := g.Stuck(); n != 0 {
		t.Errorf("stuck, after the disk answered: %d, want 0", n)
	}
	worn := errors.New("worn out")
	go func() { answers <- worn }()
	if err := g.Each(t.Context(), []string{"/dev/dead", "/dev/good"}, flush); !errors.Is(err, worn) {
		t.Errorf("a flush that fails: %v, want %v", err, worn)
	}
}

// The flush lasts until nothing else can begin.
func TestADeviceThatIsNamedOftenIsFlushedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const times = 10
		var g Guard
		asked := make(chan string, times)
		flush := func(path string) error {
			asked <- path
			time.Sleep(time.Hour)
			return nil
		}
		if err := g.Each(t.Context(), slices.Repeat([]string{"/dev/a"}, times), flush); err != nil || len(asked) != 1 {
			t.Errorf("want one flush, got %d, %v", len(asked), err)
		}
	})
}

func TestADeviceThatAnswersAgainIsReported(t *testing.T) {
	answered := make(chan struct{}, 10)
	g := Guard{Answered: func() { answered <- struct{}{} }}
	answers, asked := make(chan struct{}), make(chan struct{}, 10)
	read := func(string) (int, error) { asked <- struct{}{}; <-answers; return 7, nil }
	do := func(timeout time.Duration) (int, error) {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		return Do(ctx, &g, "/dev/x", read)
	}
	for range 3 {
		if n, err := do(10 * time.Millisecond); !errors.Is(err, ErrTimedOut) || n != 0 {
			t.Fatalf("a silent device: %d, error %v, want ErrTimedOut", n, err)
		}
	}
	if n := len(asked); n != 1 {
		t.Errorf("it is read by %d at once, want one", n)
	}
	if len(answered) != 0 {
		t.Error("an answer is reported before there was one")
	}
	close(answers)
	select {
	case <-answered:
	case <-time.After(waittest.Limit):
		t.Fatal("the answer is not reported")
	}
	if n, err := do(waittest.Limit); n != 7 || err != nil {
		t.Errorf("a device that answers: %d, error %v", n, err)
	}
	if len(answered) != 0 {
		t.Error("an answer is reported that its reader waited for")
	}
}
