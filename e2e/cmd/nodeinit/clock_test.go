package main

import (
	"errors"
	"testing"
	"time"
)

func TestAClockThatRunsAtASpeedOfItsOwnIsFound(t *testing.T) {
	for counted, want := range map[time.Duration]bool{
		2 * time.Second: false, 1500 * time.Millisecond: false, 2700 * time.Millisecond: false,
		200 * time.Millisecond: true, 17 * time.Second: true,
	} {
		if got := strays(counted, 2*time.Second); got != want {
			t.Errorf("%v counted in 2 s: want %t, got %t", counted, want, got)
		}
	}
}

func TestTheClockIsWatchedFromOneSecondsBeginningToAnothers(t *testing.T) {
	// A second of this real-time clock takes ten of the clock's milliseconds.
	start := time.Now()
	elapsed, err := watch(func() (int64, error) { return 1000 + int64(time.Since(start)/(10*time.Millisecond)), nil })
	if err != nil || !strays(elapsed, clockWindow*time.Second) || elapsed == 0 {
		t.Errorf("a clock that is a hundred times too slow counted %v, error %v", elapsed, err)
	}
	broken := errors.New("no such device")
	if _, err := watch(func() (int64, error) { return 0, broken }); !errors.Is(err, broken) {
		t.Errorf("want %v, got %v", broken, err)
	}
}
