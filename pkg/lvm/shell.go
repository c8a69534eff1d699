package lvm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/command"
)

const (
	// shellConfig makes the lvm shell answer each command on descriptor 3 with a JSON document
	// that ends with the command's status. Commands print elsewhere, so their output cannot
	// pass for an answer.
	shellConfig = systemConfig + `log { report_command_log=1 command_log_selection="all" }
report { output_format="json" }
`
	// shellCommands bounds the commands per process, and so what the process leaks.
	shellCommands = 1000
	// shellWords is one less than the words that the lvm shell accepts per line.
	shellWords = 62
	// shellGrace is how long an idle shell may take to end after its input does.
	shellGrace = time.Second
)

// errNoShell means that nothing was done.
var errNoShell = errors.New("not for a shell")

// shell is an lvm process that runs commands one at a time: starting a program takes most of a
// command's time.
type shell struct {
	in       io.WriteCloser
	answers  *json.Decoder
	pipe     *os.File
	bound    *boundedReader
	stderr   *command.Words
	process  *command.Process
	commands int
}

type shells struct {
	mu     sync.Mutex
	byKey  map[string]*shellSlot
	closed bool
}

// shellSlot has a key's shell or nil. A running command holds mu.
type shellSlot struct {
	mu sync.Mutex
	sh *shell
}

// RunFor is Run for a command that changes the object named by key, such as a volume group.
// With Lasting, one process runs a key's commands in turn; a new one follows when it ends or is
// killed. Commands that such a process cannot run get their own.
func (r *Runner) RunFor(ctx context.Context, key, subcommand string, args ...string) ([]byte, error) {
	if !r.Lasting || r.SystemDir == "" {
		return r.Run(ctx, subcommand, args...)
	}
	start := time.Now()
	err := r.runInShell(ctx, key, subcommand, args)
	if errors.Is(err, errNoShell) {
		return r.Run(ctx, subcommand, args...)
	}
	if r.Observe != nil {
		r.Observe(ctx, Result{Command: subcommand, Args: args, Duration: time.Since(start), Err: err})
	}
	return nil, err
}

// Close ends idle lasting processes; later commands run in processes of their own.
func (r *Runner) Close() {
	r.shells.mu.Lock()
	r.shells.closed = true
	slots := r.shells.byKey
	r.shells.byKey = nil
	r.shells.mu.Unlock()
	for _, slot := range slots {
		// A running command ends its shell itself.
		if slot.mu.TryLock() {
			slot.end()
			slot.mu.Unlock()
		}
	}
}

func (s *shells) slot(key string) *shellSlot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	if s.byKey == nil {
		s.byKey = map[string]*shellSlot{}
	}
	if s.byKey[key] == nil {
		s.byKey[key] = &shellSlot{}
	}
	return s.byKey[key]
}

func (s *shells) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

func (r *Runner) runInShell(ctx context.Context, key, subcommand string, args []string) error {
	line, ok := shellLine(subcommand, args)
	slot := r.shells.slot(key)
	if !ok || slot == nil {
		return errNoShell
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout(ctx))
	defer cancel()
	slot.mu.Lock()
	defer slot.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return &CommandError{Command: subcommand, ExitCode: -1, Message: "not started: " + err.Error(), Err: blockdev.TimedOut(ctx)}
	}
	if slot.sh != nil && (slot.sh.commands >= shellCommands || slot.sh.isGone()) {
		slot.end()
	}
	if slot.sh == nil {
		sh, err := r.startShell()
		if err != nil {
			return errNoShell // a separate process reports the error
		}
		slot.sh = sh
	}
	sh := slot.sh
	sh.commands++
	sh.stderr.Reset()
	sh.bound.left = maxStdout
	type answered struct {
		err    error
		broken bool
	}
	done := make(chan answered, 1)
	go func() {
		broken, err := sh.ask(subcommand, line)
		done <- answered{err, broken}
	}()
	select {
	case a := <-done:
		if a.broken {
			slot.sh = nil
			sh.kill()
		} else if r.shells.isClosed() {
			slot.end()
		}
		return a.err
	case <-ctx.Done():
	}
	slot.sh = nil
	killed := command.KilledError{Cause: ctx.Err(), Stuck: !sh.kill()}
	return &CommandError{Command: subcommand, ExitCode: -1, Message: withWords(killed.Error(), sh.stderr.String()), Err: blockdev.TimedOut(ctx)}
}

// shellLine writes a command for the lvm shell: words between blanks, quoted as a whole or not
// at all, without escapes. ok is false if that is impossible.
func shellLine(subcommand string, args []string) (line string, ok bool) {
	if len(args)+1 > shellWords {
		return "", false
	}
	var b strings.Builder
	b.WriteString(subcommand)
	for _, a := range args {
		quote := ""
		switch {
		case strings.ContainsFunc(a, func(r rune) bool { return r < ' ' || r == 0x7f }):
			return "", false
		case a != "" && !strings.ContainsAny(a, ` '"#`):
		case !strings.Contains(a, "'"):
			quote = "'"
		case !strings.Contains(a, `"`):
			quote = `"`
		default:
			return "", false
		}
		b.WriteString(" " + quote + a + quote)
	}
	b.WriteString("\n")
	return b.String(), true
}

func (r *Runner) startShell() (*shell, error) {
	dir := filepath.Join(r.SystemDir, "shell")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "lvm.conf"), []byte(shellConfig), 0o600); err != nil {
		return nil, err
	}
	pipe, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	sh := &shell{
		pipe: pipe, bound: &boundedReader{r: pipe, left: maxStdout},
		stderr: &command.Words{Limit: maxStderr},
	}
	sh.answers = json.NewDecoder(sh.bound)
	cmd := exec.Command(r.Binary)
	// Without HOME it writes no history file.
	cmd.Env = append(commandEnv(dir), "LVM_REPORT_FD=3")
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = sh.stderr
	if sh.in, err = cmd.StdinPipe(); err == nil {
		sh.process, err = command.Start(cmd)
	}
	if err != nil {
		pipe.Close()
		return nil, err
	}
	return sh, nil
}

func (sh *shell) isGone() bool {
	select {
	case <-sh.process.Gone():
		return true
	default:
		return false
	}
}

type answer struct {
	Log []struct {
		Type    string `json:"log_type"`
		Context string `json:"log_context"`
		Object  string `json:"log_object_type"`
		Name    string `json:"log_object_name"`
		Message string `json:"log_message"`
		Code    string `json:"log_ret_code"`
	} `json:"log"`
}

// lastWordsTimeout bounds the wait for the last messages of a process that gave no answer. They
// are complete once it has ended.
const lastWordsTimeout = time.Second

// ask runs a command. unusable means that the process must not be used again.
func (sh *shell) ask(subcommand, line string) (unusable bool, err error) {
	broken := func(what string, err error) error {
		message := withWords(fmt.Sprintf("%s: %v", what, err), sh.stderr.String())
		return &CommandError{Command: subcommand, ExitCode: -1, Message: message, Err: err}
	}
	if _, err := io.WriteString(sh.in, line); err != nil {
		return true, broken("the lvm process takes no commands", err)
	}
	var a answer
	if err := sh.answers.Decode(&a); err != nil {
		select {
		case <-sh.process.Gone():
		case <-time.After(lastWordsTimeout):
		}
		return true, broken("the lvm process gave no answer", err)
	}
	if len(a.Log) == 0 {
		return true, broken("the lvm process gave no status", io.ErrUnexpectedEOF)
	}
	last := a.Log[len(a.Log)-1]
	if last.Type != "status" || last.Context != "shell" || last.Object != "cmd" || last.Name != subcommand {
		return true, broken("the lvm process answered for another command", fmt.Errorf("%s %s", last.Type, last.Name))
	}
	var code int
	if _, err := fmt.Sscanf(last.Code, "%d", &code); err != nil {
		return true, broken("the lvm process gave a malformed status", err)
	}
	if code == 1 { // a process would have exited with 0
		return false, nil
	}
	words := sh.stderr.String()
	for _, l := range a.Log {
		if l.Type == "error" {
			words += l.Message + "\n"
		}
	}
	return false, newCommandError(subcommand, code, words)
}

func (slot *shellSlot) end() {
	sh := slot.sh
	if sh == nil {
		return
	}
	slot.sh = nil
	_ = sh.in.Close()
	select {
	case <-sh.process.Gone():
	case <-time.After(shellGrace):
		sh.process.Kill(0)
	}
	_ = sh.pipe.Close()
}

// kill also kills the children, and reports whether the process is gone.
func (sh *shell) kill() bool {
	gone := sh.process.Kill(reapGrace)
	_ = sh.in.Close()
	_ = sh.pipe.Close()
	return gone
}

type boundedReader struct {
	r    io.Reader
	left int
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the answer is larger than %d bytes", maxStdout)
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
