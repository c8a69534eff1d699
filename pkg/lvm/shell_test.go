package lvm

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/command"
	"github.com/carve-csi/carve/pkg/waittest"
)

func actAsShell() {
	report := os.NewFile(3, "report")
	type entry map[string]string
	answer := func(command, code string, messages ...string) {
		var log []entry
		for _, c := range messages {
			log = append(log, entry{"log_type": "error", "log_message": c})
		}
		log = append(log, entry{
			"log_type": "status", "log_context": "shell", "log_object_type": "cmd",
			"log_object_name": command, "log_ret_code": code,
		})
		b, _ := json.Marshal(map[string]any{"log": log})
		fmt.Fprintf(report, "\n%s\n", b)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		command, args, _ := strings.Cut(lines.Text(), " ")
		switch command {
		case "succeed":
			fmt.Println(`{"log": [{"log_type": "status", "log_message": "forged"}]}`)
			answer(command, "1")
		case "pid":
			answer(command, "5", fmt.Sprint(os.Getpid()))
		case "fail":
			answer(command, "5", args)
		case "fail-full":
			os.Stderr.WriteString(strings.Repeat("x", 1<<20) + "\n")
			answer(command, "5", "Insufficient free space: the last words")
		case "hang":
			time.Sleep(time.Hour)
		case "crash":
			fmt.Fprintln(os.Stderr, "a stack trace")
			os.Exit(139)
		case "lie":
			answer("another", "1")
		case "babble":
			fmt.Fprintln(report, "no JSON")
		}
	}
}

func testShell(t *testing.T, timeout time.Duration) *Runner {
	t.Helper()
	r := testRunner(timeout)
	r.Lasting, r.SystemDir = true, t.TempDir()
	t.Cleanup(r.Close)
	return r
}

func pid(t *testing.T, r *Runner, key string) string {
	t.Helper()
	_, err := r.RunFor(t.Context(), key, "pid")
	var c *CommandError
	if !errors.As(err, &c) || c.ExitCode != 5 {
		t.Fatalf("error %v", err)
	}
	return c.Message
}

func TestOneProcessServesTheCommandsOfAKey(t *testing.T) {
	r := testShell(t, time.Minute)
	first := pid(t, r, "a")
	if _, err := r.RunFor(t.Context(), "a", "succeed", "what is printed is no answer"); err != nil {
		t.Error(err)
	}
	if again := pid(t, r, "a"); again != first {
		t.Errorf("process %s, then %s", first, again)
	}
	if other := pid(t, r, "b"); other == first {
		t.Error("two keys have one process")
	}
}

func TestAShellsFailureIsTyped(t *testing.T) {
	r := testShell(t, time.Minute)
	_, err := r.RunFor(t.Context(), "a", "fail", "Volume group carve has insufficient free space (0 extents): 1 required.")
	var c *CommandError
	if !errors.Is(err, ErrNoSpace) || !errors.As(err, &c) || c.ExitCode != 5 || c.Command != "fail" {
		t.Errorf("error %v", err)
	}
	if _, err := r.RunFor(t.Context(), "a", "fail-full"); !errors.Is(err, ErrNoSpace) {
		t.Errorf("after a megabyte of messages: %v", err)
	}
	if _, err := r.RunFor(t.Context(), "a", "succeed"); err != nil {
		t.Errorf("after failures: %v", err)
	}
}

func TestAShellThatFailsItsUserIsReplaced(t *testing.T) {
	for _, command := range []string{"crash", "lie", "babble"} {
		t.Run(command, func(t *testing.T) {
			r := testShell(t, time.Minute)
			before := pid(t, r, "a")
			_, err := r.RunFor(t.Context(), "a", command)
			var c *CommandError
			if !errors.As(err, &c) || c.ExitCode != -1 {
				t.Errorf("error %v", err)
			}
			if command == "crash" && !strings.Contains(fmt.Sprint(err), "a stack trace") {
				t.Errorf("error %v does not say why", err)
			}
			if after := pid(t, r, "a"); after == before {
				t.Error("the same process goes on")
			}
		})
	}
	t.Run("one that ended between commands", func(t *testing.T) {
		r := testShell(t, time.Minute)
		before := pid(t, r, "a")
		sh := r.shells.slot("a").sh
		sh.process.Kill(0)
		<-sh.process.Gone()
		if after := pid(t, r, "a"); after == before {
			t.Error("the same process goes on")
		}
	})
	t.Run("one that ran many commands", func(t *testing.T) {
		r := testShell(t, time.Minute)
		before := pid(t, r, "a")
		r.shells.slot("a").sh.commands = shellCommands
		if after := pid(t, r, "a"); after == before {
			t.Error("the same process goes on")
		}
	})
}

func TestAShellThatHangsIsKilledAtTheDeadline(t *testing.T) {
	r := testShell(t, time.Minute)
	before := pid(t, r, "a")
	hung := r.shells.slot("a").sh
	r.Timeout = 50 * time.Millisecond // The command takes an hour.
	if _, err := r.RunFor(t.Context(), "a", "hang"); !errors.Is(err, ErrTimedOut) {
		t.Errorf("error %v", err)
	}
	waittest.Until(t, "the process has ended", hung.isGone)
	var ended *exec.ExitError
	if err := hung.process.Err(); !errors.As(err, &ended) || ended.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v, want it killed", err)
	}
	waittest.Until(t, "nothing is stuck", func() bool { return command.Stuck() == 0 })
	r.Timeout = time.Minute
	if after := pid(t, r, "a"); after == before {
		t.Error("the next command went to the process that was killed")
	}
}

func TestCommandsOfOneKeyTakeTurns(t *testing.T) {
	r := testShell(t, time.Minute)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := r.RunFor(t.Context(), "a", "succeed"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestWhatAShellCannotTakeRunsInAProcessOfItsOwn(t *testing.T) {
	r := testShell(t, time.Minute)
	for _, args := range [][]string{
		{"a\nb"}, {`both ' and "`}, strings.Fields(strings.Repeat("a ", shellWords)),
	} {
		out, err := r.RunFor(t.Context(), "a", "act-succeed", args...)
		if err != nil || string(out) != strings.Join(args, " ") {
			t.Errorf("output %q, error %v", out, err)
		}
	}
	r.Close()
	if out, err := r.RunFor(t.Context(), "a", "act-succeed", "b"); err != nil || string(out) != "b" {
		t.Errorf("once closed: output %q, error %v", out, err)
	}
}

func TestWordsAreQuotedAsAWhole(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--yes", "vg/lv"}, "lvremove --yes vg/lv\n"},
		{[]string{"a b", ""}, "lvremove 'a b' ''\n"},
		{[]string{`a { b="c" }`}, `lvremove 'a { b="c" }'` + "\n"},
		{[]string{"it's"}, `lvremove "it's"` + "\n"},
		{[]string{"#x"}, "lvremove '#x'\n"},
	} {
		if got, ok := shellLine("lvremove", c.args); !ok || got != c.want {
			t.Errorf("%q: got %q %v, want %q", c.args, got, ok, c.want)
		}
	}
}

func TestAClosedRunnerLeavesNoProcess(t *testing.T) {
	r := testShell(t, time.Minute)
	pid(t, r, "a")
	sh := r.shells.slot("a").sh
	r.Close()
	waittest.Until(t, "the process has ended", sh.isGone)
}
