package lvm

import (
	"errors"
	"testing"
	"time"
)

// TestADeviceThatAnswersAgainIsTold has a device be silent for longer than anybody
// waits.
func TestADeviceThatAnswersAgainIsTold(t *testing.T) {
	h := NewHost(nil)
	h.patience = 10 * time.Millisecond
	events := make(chan struct{}, 1)
	h.Notify(events)
	answers, asked := make(chan struct{}), make(chan struct{}, 10)
	read := func(string) (int, error) { asked <- struct{}{}; <-answers; return 7, nil }
	for range 3 {
		if n, err := patiently(h, "/dev/x", read); !errors.Is(err, ErrTimedOut) || n != 0 {
			t.Fatalf("a silent device: %d, error %v, want ErrTimedOut", n, err)
		}
	}
	if n := len(asked); n != 1 {
		t.Errorf("it is read by %d at once, want one", n)
	}
	select {
	case <-events:
		t.Error("told of an answer before there was one")
	default:
	}
	close(answers)
	select {
	case <-events:
	case <-time.After(10 * time.Second):
		t.Fatal("not told of the answer")
	}
	h.patience = 10 * time.Second
	if n, err := patiently(h, "/dev/x", read); n != 7 || err != nil {
		t.Errorf("a device that answers: %d, error %v", n, err)
	}
	select {
	case <-events:
		t.Error("told of an answer that nobody waited for")
	default:
	}
}
