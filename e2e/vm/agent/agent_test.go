package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carve-csi/carve/e2e/vm/guest"
)

// connect returns a client of a server in this process, over a byte stream.
func connect(t *testing.T, server *Server) *Client {
	t.Helper()
	if server.Status == nil {
		server.Status = func() guest.Status { return guest.Status{} }
	}
	ours, theirs := net.Pipe()
	go func() { _ = server.Serve(theirs) }()
	client, err := NewClient(ours)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestOutputAndExitCodeComeBack(t *testing.T) {
	client := connect(t, &Server{Environment: os.Environ()})
	var stdout, stderr bytes.Buffer
	code, err := client.Run(t.Context(), Command{
		Argv: []string{"sh", "-c", `cat; echo "$WHO" >&2; exit 3`}, Env: []string{"WHO=me"},
		Stdin: strings.NewReader("in"), Stdout: &stdout, Stderr: &stderr,
	})
	if err != nil || code != 3 || stdout.String() != "in" || stderr.String() != "me\n" {
		t.Errorf("Run = %d, %v with %q and %q; want 3 with \"in\" and \"me\\n\"", code, err, stdout.String(), stderr.String())
	}
}

func TestLargeInputAndOutputAreWhole(t *testing.T) {
	client := connect(t, &Server{Environment: os.Environ()})
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	var stdout bytes.Buffer
	code, err := client.Run(t.Context(), Command{Argv: []string{"cat"}, Stdin: bytes.NewReader(content), Stdout: &stdout})
	if err != nil || code != 0 || !bytes.Equal(stdout.Bytes(), content) {
		t.Errorf("Run = %d, %v with %d bytes, want %d", code, err, stdout.Len(), len(content))
	}
}

func TestACommandThatCannotBeRunIsAnError(t *testing.T) {
	client := connect(t, &Server{Environment: os.Environ()})
	if _, err := client.Run(t.Context(), Command{Argv: []string{"no-such-command"}}); err == nil {
		t.Error("Run of a command that is not there: want an error")
	}
	if _, err := client.Output(t.Context(), "sh", "-c", "echo why >&2; exit 1"); err == nil || !strings.Contains(err.Error(), "why") {
		t.Errorf("Output of a failing command: %v, want what it printed", err)
	}
}

func TestASignalIsTheExitCode(t *testing.T) {
	client := connect(t, &Server{Environment: os.Environ()})
	code, err := client.Run(t.Context(), Command{Argv: []string{"sh", "-c", "kill -KILL $$"}})
	if err != nil || code != 128+9 {
		t.Errorf("Run = %d, %v; want 137", code, err)
	}
}

func TestTheEndOfTheContextKillsWhatRuns(t *testing.T) {
	client := connect(t, &Server{Environment: os.Environ()})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	output, written := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := client.Run(ctx, Command{Argv: []string{"sh", "-c", "sleep 3600 & echo $$ $!; wait"}, Stdout: written})
		ended <- err
	}()
	var shell, child int
	if _, err := fmt.Fscan(output, &shell, &child); err != nil {
		t.Fatal(err)
	}
	for what, pid := range map[string]int{"command": shell, "child": child} {
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) }) // if it still runs
		if !runs(pid) {
			t.Fatalf("the %s does not run: the test proves nothing", what)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v, want the context's error", err)
	}
	until(t, "the command and its child have ended", func() bool { return !runs(shell) && !runs(child) })
}

// limit bounds every wait: far more than anything takes here, on a loaded machine, too.
const limit = 2 * time.Minute

// until waits until cond reports true, or fails the test.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// runs reports whether there is such a process. One that ended may be a zombie until init
// reaps it.
func runs(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(status), ") Z ")
}

func TestWhatACommandLeavesBehindDoesNotHoldItsResult(t *testing.T) {
	client := connect(t, &Server{Environment: os.Environ()})
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var stdout bytes.Buffer
	if _, err := client.Run(ctx, Command{Argv: []string{"sh", "-c", "sleep 3600 & echo $!"}, Stdout: &stdout}); err != nil {
		t.Fatal(err)
	}
	var left int
	if _, err := fmt.Sscan(stdout.String(), &left); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(left, syscall.SIGKILL) }) // if it still runs
	until(t, "what it left behind has ended", func() bool { return !runs(left) })
}

func TestPutWritesTheFileWhole(t *testing.T) {
	client := connect(t, &Server{})
	path := filepath.Join(t.TempDir(), "folder", "file")
	content := bytes.Repeat([]byte("x"), 3*maxFrame+1)
	if err := client.Put(t.Context(), path, 0o640, bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("the file has %d bytes, %v; want %d", len(got), err, len(content))
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 {
		t.Errorf("the file's mode: %v, %v", info.Mode(), err)
	}
}

func TestATerminalIsOne(t *testing.T) {
	client := connect(t, &Server{Environment: os.Environ()})
	sizes := make(chan [2]uint16, 1)
	sizes <- [2]uint16{33, 44}
	var stdout bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	code, err := client.Run(ctx, Command{
		Argv: []string{"sh", "-c", `until test "$(stty size)" = "33 44"; do sleep 0.01; done; stty size; read line; echo got $line`}, TTY: true, Resize: sizes,
		Stdin: strings.NewReader("hello\n"), Stdout: &stdout,
	})
	if err != nil || code != 0 || !strings.Contains(stdout.String(), "33 44") || !strings.Contains(stdout.String(), "got hello") {
		t.Errorf("Run = %d, %v with %q", code, err, stdout.String())
	}
}

func TestStatusAndPowerOffReachTheServer(t *testing.T) {
	off := make(chan struct{})
	client := connect(t, &Server{
		Status:   func() guest.Status { return guest.Status{Ready: true, Phase: "up"} },
		PowerOff: func() { close(off) },
	})
	status, err := client.Status(t.Context())
	if err != nil || !status.Ready || status.Phase != "up" {
		t.Errorf("Status = %+v, %v", status, err)
	}
	if err := client.PowerOff(t.Context()); err != nil {
		t.Error(err)
	}
	<-off
}

func TestARelayServesSeveralAtOnceAndEndsWithItsListener(t *testing.T) {
	client := connect(t, &Server{Environment: os.Environ()})
	path := filepath.Join(t.TempDir(), "socket")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	relayed := make(chan error, 1)
	go func() { relayed <- client.Relay(listener) }()
	remote := NewDialer(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	})
	results := make(chan error, 4)
	for range cap(results) {
		go func() {
			output, err := remote.Output(t.Context(), "echo", "hello")
			if err == nil && output != "hello\n" {
				err = errors.New(output)
			}
			results <- err
		}()
	}
	for range cap(results) {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	_ = listener.Close()
	if err := <-relayed; err != nil {
		t.Error(err)
	}
}

func TestAMachineThatGoesAwayIsGone(t *testing.T) {
	ours, theirs := net.Pipe()
	client, err := NewClient(ours)
	if err != nil {
		t.Fatal(err)
	}
	go func() { // it goes when it has begun to read what it is asked for
		_, _ = io.ReadFull(theirs, make([]byte, 1))
		_ = theirs.Close()
	}()
	if _, err := client.Output(t.Context(), "true"); !errors.Is(err, ErrGone) {
		t.Errorf("Output: %v, want ErrGone", err)
	}
}
