package lvm

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/carve-csi/carve/pkg/waittest"
)

// TestADeadDiskIsFlushedOnceHoweverOftenItIsTried has a disk not answer for as long as the
// test wants.
func TestADeadDiskIsFlushedOnceHoweverOftenItIsTried(t *testing.T) {
	h := NewHost(&Runner{})
	events := make(chan struct{}, 1)
	h.Notify(events)
	asked, answers := make(chan string, 10), make(chan error)
	h.flushes.device = func(path string) error {
		asked <- path
		if path == "/dev/dead" {
			return <-answers
		}
		return nil
	}
	// The wait is over when the disk was asked.
	given, give := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { first <- h.flushes.flush(given, []string{"/dev/dead", "/dev/good"}) }()
	for range 2 {
		<-asked
	}
	if n := h.Stuck(); n != 0 {
		t.Errorf("stuck, while a caller waits: %d, want 0", n)
	}
	give()
	if err := <-first; !errors.Is(err, ErrTimedOut) {
		t.Errorf("a flush that was not waited for: %v, want ErrTimedOut", err)
	}
	for range 3 {
		if err := h.flushes.flush(t.Context(), []string{"/dev/good", "/dev/dead"}); !errors.Is(err, ErrTimedOut) {
			t.Errorf("another flush of a dead disk: %v, want ErrTimedOut at once", err)
		}
	}
	if err := h.flushes.flush(t.Context(), []string{"/dev/good"}); err != nil {
		t.Errorf("a flush of another disk: %v", err)
	}
	if n := len(asked); n != 1 {
		t.Errorf("disks are flushed %d times more, want once, the good one", n)
	}
	if n := h.Stuck(); n != 1 {
		t.Errorf("stuck: %d, want 1", n)
	}
	answers <- nil
	waittest.Until(t, "an event tells that the disk answers", func() bool { return len(events) == 1 })
	if n := h.Stuck(); n != 0 {
		t.Errorf("stuck, after the disk answered: %d, want 0", n)
	}
	go func() { answers <- errors.New("worn out") }()
	if err := h.flushes.flush(t.Context(), []string{"/dev/dead"}); !errors.Is(err, ErrDeviceMissing) {
		t.Errorf("a flush that fails: %v, want ErrDeviceMissing", err)
	}
}

// TestADeviceThatIsNamedTwiceIsFlushedOnce counts.
func TestADeviceThatIsNamedTwiceIsFlushedOnce(t *testing.T) {
	h := NewHost(&Runner{})
	asked := make(chan string, 10)
	h.flushes.device = func(path string) error { asked <- path; return nil }
	if err := h.flushes.flush(t.Context(), []string{"/dev/a", "/dev/a"}); err != nil || len(asked) != 1 {
		t.Error(fmt.Errorf("want one flush, got %d, %w", len(asked), err))
	}
}
