package lvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/command"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// TestMain lets the test binary stand in for lvm, as its first argument says.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		if act, ok := acts[os.Args[1]]; ok {
			act(os.Args[2:])
			return
		}
	}
	if os.Getenv("LVM_REPORT_FD") != "" {
		actAsShell()
		return
	}
	os.Exit(m.Run())
}

var acts = map[string]func(args []string){
	"act-succeed": func(args []string) { fmt.Print(strings.Join(args, " ")) },
	"act-env":     func([]string) { fmt.Print(strings.Join(os.Environ(), "\n")) },
	"act-fail": func(args []string) {
		fmt.Fprintln(os.Stderr, "  WARNING: this is of no interest.")
		fmt.Fprintln(os.Stderr, "  "+args[0])
		os.Exit(5)
	},
	"act-warn": func(args []string) {
		n, _ := strconv.Atoi(args[0])
		fmt.Fprintln(os.Stderr, "the first words")
		os.Stderr.WriteString(strings.Repeat("x", n))
		fmt.Fprintln(os.Stderr, "\nInsufficient free space: the last words")
		os.Exit(5)
	},
	"act-hang": func([]string) { time.Sleep(time.Hour) },
	// Like LVM when it cannot read one of its groups.
	"fullreport": func([]string) {
		b, err := os.ReadFile("testdata/fullreport.json")
		if err != nil {
			panic(err)
		}
		os.Stdout.Write(b)
		os.Exit(5)
	},
	// A grandchild holds the pipes open, as a helper of lvm could.
	"act-fork-and-hang": func(args []string) {
		child := exec.Command(os.Args[0], "act-hang")
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			panic(err)
		}
		if err := os.WriteFile(args[0]+".part", []byte(strconv.Itoa(child.Process.Pid)), 0o600); err != nil {
			panic(err)
		}
		if err := os.Rename(args[0]+".part", args[0]); err != nil {
			panic(err)
		}
		time.Sleep(time.Hour)
	},
}

func testRunner(timeout time.Duration) *Runner {
	return &Runner{Binary: os.Args[0], Timeout: timeout}
}

func TestACommandGetsItsArgumentsAndACleanEnvironment(t *testing.T) {
	r := testRunner(time.Minute)
	out, err := r.Run(t.Context(), "act-succeed", "a b", "c'd")
	if err != nil || string(out) != "a b c'd" {
		t.Errorf("output %q, error %v", out, err)
	}
	t.Setenv("LVM_SYSTEM_DIR", "/etc/lvm")
	t.Setenv("LC_ALL", "de_DE.UTF-8")
	out, err = r.Run(t.Context(), "act-env")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"LC_ALL=C", "LVM_SYSTEM_DIR="} {
		if !strings.Contains("\n"+string(out)+"\n", "\n"+want+"\n") {
			t.Errorf("no %s in %q", want, out)
		}
	}
}

func TestALVMWithoutASystemDirectoryIsRefused(t *testing.T) {
	if h, err := NewHost(testRunner(time.Minute)); err == nil || h != nil {
		t.Errorf("got %v, error %v, want an error: commands would take their locks in a folder of all programs", h, err)
	}
}

func TestOfTheReportOfACommandThatFailedNothingIsTaken(t *testing.T) {
	r := testRunner(time.Minute)
	r.SystemDir = t.TempDir()
	found, err := must.Get(NewHost(r))(t).commands.report(t.Context(), []string{"carve"}, []string{"/dev/carve-none"})
	var failed *CommandError
	if !errors.As(err, &failed) || failed.ExitCode != 5 || len(found) > 0 {
		t.Errorf("%d groups, error %v", len(found), err)
	}
}

func TestLVMsWordsBecomeTypedErrors(t *testing.T) {
	for _, c := range []struct {
		words string
		want  error
	}{
		{`Volume group "carve" has insufficient free space (84 extents): 1000 required.`, ErrNoSpace},
		{`Insufficient free space: 1000 extents needed, but only 84 available`, ErrNoSpace},
		{`Insufficient suitable allocatable extents for logical volume x: 3 more required`, ErrNoSpace},
		{`VG carve 9 metadata on /dev/loop0 (603239 bytes) exceeds maximum metadata size (521472 bytes)`, ErrNoSpace},
		{`Logical Volume "cvx" already exists in volume group "carve"`, ErrExists},
		{`Failed to find logical volume "carve/nope"`, ErrNotFound},
		{`Logical volume nope not found in volume group carve.`, ErrNotFound},
		{`Volume group "carvex" not found`, ErrNotFound},
		{`Logical volume carve/cv1 in use.`, ErrBusy},
		{`Logical volume carve/cv1 contains a filesystem in use.`, ErrBusy},
		{`Cannot change VG carve while PVs are missing.`, ErrDeviceMissing},
		{`/dev/sdb: read failed after 0 of 512 at 0: Input/output error`, ErrDeviceMissing},
		{`Failure to communicate with kernel device-mapper driver.`, ErrUnavailable},
	} {
		_, err := testRunner(time.Minute).Run(t.Context(), "act-fail", c.words)
		if !errors.Is(err, c.want) {
			t.Errorf("%q is %v, want %v", c.words, err, c.want)
		}
		if want := "act-fail: " + c.words; err.Error() != want {
			t.Errorf("error %q, want %q", err, want)
		}
	}
	_, err := testRunner(time.Minute).Run(t.Context(), "act-fail", "something new")
	var failed *CommandError
	if !errors.As(err, &failed) || failed.Err != nil || failed.ExitCode != 5 {
		t.Errorf("error %#v", err)
	}
}

func TestAMegabyteOfMessagesIsReadAndBounded(t *testing.T) {
	_, err := testRunner(time.Minute).Run(t.Context(), "act-warn", strconv.Itoa(1<<20))
	if !errors.Is(err, ErrNoSpace) {
		t.Errorf("error %v", err)
	}
	if s := err.Error(); len(s) > 2000 || !strings.Contains(s, "the first words") || !strings.Contains(s, "the last words") {
		t.Errorf("%d bytes: %.200s", len(s), s)
	}
}

func TestACommandThatHangsIsKilledAtItsDeadline(t *testing.T) {
	r := testRunner(50 * time.Millisecond)
	_, err := r.Run(t.Context(), "act-hang")
	if !errors.Is(err, ErrTimedOut) || !errors.As(err, new(*CommandError)) {
		t.Errorf("error %v", err)
	}
	waittest.Until(t, "nothing is stuck", func() bool { return command.Stuck() == 0 })
}

func TestTheWholeProcessGroupIsKilled(t *testing.T) {
	file := t.TempDir() + "/pid"
	var seen Result
	r := testRunner(time.Hour)
	r.Observe = func(_ context.Context, result Result) { seen = result }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := r.Run(ctx, "act-fork-and-hang", file)
		ended <- err
	}()
	var pid int
	waittest.Succeeds(t, "the command has a child", func() error {
		b, err := os.ReadFile(file)
		if err == nil {
			pid, err = strconv.Atoi(string(b))
		}
		return err
	})
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) }) // in case it still runs
	cancel()
	if err := <-ended; !errors.Is(err, ErrTimedOut) || !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if seen.Command != "act-fork-and-hang" || seen.Err == nil || seen.Duration <= 0 {
		t.Errorf("observed %+v", seen)
	}
	var status []byte
	waittest.Until(t, "the child has ended", func() bool {
		// A killed orphan may be a zombie until init reaps it.
		var err error
		status, err = os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(status), ") Z ")
	}, func() any { return string(status) })
}

func TestACancelledCallerStartsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := testRunner(time.Minute).Run(ctx, "act-succeed")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestAMissingProgramIsUnavailable(t *testing.T) {
	r := &Runner{Binary: "/nonexistent/lvm", Timeout: time.Minute}
	_, err := r.Run(t.Context(), "vgs")
	if !errors.Is(err, ErrUnavailable) {
		t.Errorf("error %v", err)
	}
}
