package command

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/waittest"
)

func sh(script string, args ...string) Command {
	return Command{Program: "sh", Args: append([]string{"-c", script, "sh"}, args...), Env: []string{"PATH=" + Path}, MaxOutput: 4096}
}

func TestWhatAProgramLeavesIsReturned(t *testing.T) {
	c := sh(`cat; echo "$1" >&2; exit 7`, "$(id) `id`")
	c.Input, c.MaxErrors = []byte("a\x00b"), 100
	r, err := Run(t.Context(), c)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || r.ExitCode != 7 {
		t.Errorf("exit status %d, error %v, want 7", r.ExitCode, err)
	}
	if !bytes.Equal(r.Output, c.Input) || r.Errors != "$(id) `id`\n" || r.Truncated {
		t.Errorf("output %q, errors %q, truncated %t", r.Output, r.Errors, r.Truncated)
	}
	c = sh(`echo out; echo err >&2; echo "$HOME"`)
	if r, err := Run(t.Context(), c); err != nil || string(r.Output) != "out\nerr\n\n" || r.Errors != "" {
		t.Errorf("both in one: output %q, errors %q, error %v", r.Output, r.Errors, err)
	}
	c.MaxOutput, c.MaxErrors = 0, 100
	if r, err := Run(t.Context(), c); err != nil || len(r.Output) > 0 || r.Truncated || r.Errors != "out\nerr\n\n" {
		t.Errorf("both in the other: output %q, errors %q, truncated %t, error %v", r.Output, r.Errors, r.Truncated, err)
	}
}

func TestAMegabyteOfOutputIsReadAndBounded(t *testing.T) {
	c := sh(`head -c 1048576 /dev/zero; head -c 1048576 /dev/zero >&2`)
	c.MaxOutput, c.MaxErrors = 1000, 100
	if r, err := Run(t.Context(), c); err != nil || len(r.Output) != 1000 || !r.Truncated || len(r.Errors) > 110 {
		t.Errorf("kept %d and %d bytes, truncated %t, error %v", len(r.Output), len(r.Errors), r.Truncated, err)
	}
}

func TestAProgramThatCannotStartIsAnError(t *testing.T) {
	if r, err := Run(t.Context(), Command{Program: "carve-no-such-program"}); !errors.Is(err, exec.ErrNotFound) || r.ExitCode != -1 {
		t.Errorf("exit status %d, error %v", r.ExitCode, err)
	}
	why := errors.New("it stops")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	file := filepath.Join(t.TempDir(), "file")
	if _, err := Run(ctx, sh(`touch "$1"`, file)); !errors.Is(err, why) || errors.As(err, new(*KilledError)) {
		t.Errorf("error %v, want %v and nothing killed", err, why)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it ran all the same: %v", err)
	}
}

func TestTheContextsEndKillsAProgramWithItsChildren(t *testing.T) {
	why := errors.New("it stops")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	file := filepath.Join(t.TempDir(), "pid")
	type ended struct {
		result Result
		err    error
	}
	end := make(chan ended, 1)
	go func() {
		r, err := Run(ctx, sh(`echo before; sleep 3600 & echo $! > "$1.part"; mv "$1.part" "$1"; sleep 3600; echo never`, file))
		end <- ended{r, err}
	}()
	var child string
	waittest.Succeeds(t, "the program has a child", func() error {
		text, err := os.ReadFile(file)
		child = strings.TrimSpace(string(text))
		return err
	})
	t.Cleanup(func() {
		if pid, err := strconv.Atoi(child); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL) // in case it still runs
		}
	})
	cancel(why)
	e := <-end
	var killed *KilledError
	if !errors.As(e.err, &killed) || killed.Stuck || !errors.Is(e.err, why) {
		t.Errorf("error %v, want a KilledError by %v", e.err, why)
	}
	if string(e.result.Output) != "before\n" || e.result.ExitCode != -1 {
		t.Errorf("output %q, exit status %d", e.result.Output, e.result.ExitCode)
	}
	waittest.Until(t, "the child has ended", func() bool { // it may be a zombie until init reaps it
		status, err := os.ReadFile("/proc/" + child + "/stat")
		return err != nil || strings.Contains(string(status), ") Z ")
	})
}

// lingering lasts two seconds after its kill: a grandchild outside its process group holds its
// output.
func lingering(started string) Command {
	// Before the grandchild has a session of its own, it would be killed with the rest.
	return sh(`setsid sh -c 'touch "$0"; exec sleep 10' "$1" & sleep 3600`, started)
}

// runLingering kills a lingering program and hardly waits before that counts as stuck.
func runLingering(t *testing.T, abandon bool) (stuckMeanwhile int, took time.Duration, err error) {
	t.Helper()
	before := Stuck()
	c := lingering(filepath.Join(t.TempDir(), "started"))
	c.Abandon = abandon
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	end := make(chan error, 1)
	go func() {
		_, err := run(ctx, c, time.Millisecond, waitingLook)
		end <- err
	}()
	waittest.Succeeds(t, "the program has started", func() error { _, err := os.Stat(c.Args[len(c.Args)-1]); return err })
	cancel()
	killed := time.Now()
	waittest.Until(t, "it counts as stuck", func() bool { stuckMeanwhile = Stuck() - before; return stuckMeanwhile > 0 })
	err = <-end
	took = time.Since(killed)
	waittest.Until(t, "it is gone and counts no more", func() bool { return Stuck() == before })
	return stuckMeanwhile, took, err
}

func TestAProcessThatIsNotGoneCountsAsStuckUntilItIs(t *testing.T) {
	for name, abandon := range map[string]bool{"abandoned": true, "waited for": false} {
		t.Run(name, func(t *testing.T) {
			stuck, took, err := runLingering(t, abandon)
			var killed *KilledError
			if stuck != 1 || !errors.As(err, &killed) {
				t.Fatalf("%d stuck, error %v, want one and a KilledError", stuck, err)
			}
			if killed.Stuck != abandon || (killed.Gone != nil) != abandon {
				t.Errorf("when Run returns, the process is stuck: %v, with a channel: %v; want both %v", killed.Stuck, killed.Gone != nil, abandon)
			}
			if abandoned := took < reapGrace*3/4; abandoned != abandon {
				t.Errorf("Run returned %v after the kill", took)
			}
		})
	}
}

func TestADeviceGetsNoOtherProgramUntilTheOneThatWasAbandonedIsGone(t *testing.T) {
	hanging := lingering(filepath.Join(t.TempDir(), "started"))
	hanging.Device = "device"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	end := make(chan error, 1)
	go func() {
		_, err := run(ctx, hanging, time.Millisecond, waitingLook)
		end <- err
	}()
	waittest.Succeeds(t, "the program has started", func() error { _, err := os.Stat(hanging.Args[len(hanging.Args)-1]); return err })
	other := sh("true")
	for name, device := range map[string]string{"its own": "device", "another": "other", "none": ""} {
		other.Device = device
		if _, err := Run(t.Context(), other); err != nil {
			t.Errorf("while it runs, on %s: %v", name, err)
		}
	}
	cancel()
	if err := <-end; !errors.As(err, new(*KilledError)) {
		t.Fatalf("the program was not killed: %v", err)
	}
	for name, c := range map[string]struct {
		device string
		want   error
	}{"its own": {"device", ErrHangs}, "another": {"other", nil}, "none": {"", nil}} {
		other.Device = c.device
		if _, err := Run(t.Context(), other); !errors.Is(err, c.want) {
			t.Errorf("while it is not gone, on %s: got %v, want %v", name, err, c.want)
		}
	}
	waittest.Succeeds(t, "it is gone", func() error { return Hangs("device") })
	other.Device = "device"
	if _, err := Run(t.Context(), other); err != nil {
		t.Errorf("after it is gone: %v", err)
	}
}

func TestAProcessThatDoesNothingWaits(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	waits := make(chan bool)
	c := sh(`read line < "$1"; while :; do :; done`, fifo)
	c.Waiting = func(waiting bool) { waits <- waiting }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	end := make(chan error, 1)
	go func() {
		_, err := run(ctx, c, reapGrace, 50*time.Millisecond)
		end <- err
	}()
	if !<-waits {
		t.Fatal("the process goes on, before it was reported to wait")
	}
	writer, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if _, err := writer.WriteString("go on\n"); err != nil {
		t.Fatal(err)
	}
	if <-waits {
		t.Error("the process waits twice without going on between")
	}
	cancel()
	for {
		select {
		case <-waits: // a loaded machine may give it no time
			continue
		case <-end:
		}
		break
	}
}

func TestMemoryIsLimitedBeforeProgramStarts(t *testing.T) {
	const memory = 8 << 20
	// A limit set after the program's start would spare some of these runs.
	for range 50 {
		c := Command{Program: "cat", Args: []string{"/proc/self/limits"}, Env: []string{"PATH=" + Path}, MaxOutput: 4096, Memory: memory}
		r, err := Run(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		limit := regexp.MustCompile(`Max data size +(\S+) +(\S+) +bytes`).FindSubmatch(r.Output)
		if limit == nil {
			t.Fatalf("no limit in:\n%s", r.Output)
		}
		if soft, hard := string(limit[1]), string(limit[2]); soft != strconv.Itoa(memory) || hard != soft {
			t.Fatalf("the limit of its data is %s and at most %s bytes, want %d", soft, hard, memory)
		}
	}
	if _, err := Run(t.Context(), Command{Program: "carve-no-such-program", Memory: memory}); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("a program that is not there: %v", err)
	}
	c := sh(`exit 7`)
	c.Memory = memory
	if r, err := Run(t.Context(), c); r.ExitCode != 7 {
		t.Errorf("exit status %d, error %v, want 7", r.ExitCode, err)
	}
}
