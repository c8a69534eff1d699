package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// clockFolder is where the kernel lists its clock sources, and takes the choice of one.
	clockFolder = "/sys/devices/system/clocksource/clocksource0/"
	// clockWindow is how many seconds the clock is watched for.
	clockWindow = 2
	// clockTimeout bounds the watching, by a clock that may run much too fast.
	clockTimeout = 5 * time.Minute
)

// keepTime holds the kernel's clock against the machine's real-time clock, and has
// the kernel use another source where it runs at another speed. The kernel finds out
// at boot, with the help of a timer, how fast the processor's time-stamp counter
// counts; in an emulated machine on a busy host it can be wrong by a factor of ten,
// and every deadline then passes ten times too soon.
func keepTime() error {
	rtc, err := os.Open("/dev/rtc0")
	if err != nil {
		return fmt.Errorf("open the real-time clock: %w", err)
	}
	defer rtc.Close()
	elapsed, err := watch(func() (int64, error) { return readRTC(rtc) })
	if err != nil || !strays(elapsed, clockWindow*time.Second) {
		return err
	}
	fmt.Printf("nodeinit: the clock counted %v in %d s, looking for a better one\n", elapsed, clockWindow)
	available, err := os.ReadFile(clockFolder + "available_clocksource")
	if err != nil {
		return err
	}
	for _, source := range []string{"hpet", "acpi_pm"} {
		if !strings.Contains(string(available), source) {
			continue
		}
		if err := os.WriteFile(clockFolder+"current_clocksource", []byte(source), 0); err != nil {
			return fmt.Errorf("use the clock source %s: %w", source, err)
		}
		now, err := readRTC(rtc)
		if err != nil {
			return err
		}
		return unix.Settimeofday(&unix.Timeval{Sec: now})
	}
	return fmt.Errorf("the clock counted %v in %d s, and there is no other source than %s", elapsed, clockWindow, available)
}

// strays reports whether the clock runs at a speed of its own. The host may let the
// machine wait for a while, so that small differences mean nothing.
func strays(counted, really time.Duration) bool {
	return counted < really/2 || counted > really*3/2
}

// watch returns what the kernel's clock counts while the real-time clock, in whole
// seconds, goes on by clockWindow.
func watch(seconds func() (int64, error)) (time.Duration, error) {
	deadline := time.Now().Add(clockTimeout)
	first, err := seconds()
	if err != nil {
		return 0, err
	}
	var began time.Time
	for last := first; ; {
		now, err := seconds()
		switch {
		case err != nil:
			return 0, err
		case time.Now().After(deadline):
			return 0, fmt.Errorf("the real-time clock stands still")
		case now > last && began.IsZero():
			began, first = time.Now(), now
		case !began.IsZero() && now >= first+clockWindow:
			return time.Since(began), nil
		}
		last = now
		time.Sleep(time.Millisecond)
	}
}

// readRTC returns the real-time clock's time in seconds since 1970.
func readRTC(rtc *os.File) (int64, error) {
	t, err := unix.IoctlGetRTCTime(int(rtc.Fd()))
	if err != nil {
		return 0, fmt.Errorf("read the real-time clock: %w", err)
	}
	return time.Date(int(t.Year)+1900, time.Month(t.Mon+1), int(t.Mday), int(t.Hour), int(t.Min), int(t.Sec), 0, time.UTC).Unix(), nil
}
