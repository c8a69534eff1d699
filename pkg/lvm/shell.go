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
	// shellConfig has the lvm shell answer each command on descriptor 3 with one
	// JSON document, whose last element is the command's status. What commands
	// print goes elsewhere, so nothing can be taken for an answer.
	shellConfig = systemConfig + `log { report_command_log=1 command_log_selection="all" }
report { output_format="json" }
`
	// shellCommands bounds how many commands one process runs, and with that
	// whatever it may lose of its memory.
	shellCommands = 1000
	// shellWords is what the lvm shell takes of words in a line, less one.
	shellWords = 62
	// shellGrace is how long an idle shell has to end when its input does.
	shellGrace = time.Second
)

// errNoShell is returned when a command cannot be given to a shell: nothing was
// done.
var errNoShell = errors.New("not for a shell")

// shell is an lvm process that is fed commands, one at a time. Starting a
// program, which is most of what a command costs, is so done once.
type shell struct {
	in      io.WriteCloser
	answers *json.Decoder
	pipe    *os.File
	bound   *boundedReader
	stderr  *command.Words
	process *command.Process
	// commands counts those it was given.
	commands int
}

// shells keeps one shell for each key.
type shells struct {
	mu     sync.Mutex
	byKey  map[string]*shellSlot
	closed bool
}

// shellSlot has the shell of one key, or none. Its lock is held while a
// command runs.
type shellSlot struct {
	mu sync.Mutex
	sh *shell
}

// RunFor is Run for a command that changes the thing that key names, such as a
// volume group. When Lasting is set, commands of the same key run one after the
// other in one process, which is started again when it ended or had to be
// killed. A command that such a process cannot be given runs in one of its own.
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

// Close ends the processes that wait for commands, and lets no more be
// started; commands then run in processes of their own.
func (r *Runner) Close() {
	r.shells.mu.Lock()
	r.shells.closed = true
	slots := r.shells.byKey
	r.shells.byKey = nil
	r.shells.mu.Unlock()
	for _, slot := range slots {
		// A command that runs now ends its shell itself.
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
			return errNoShell // a process of its own reports what is wrong
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

// shellLine writes a command as the lvm shell reads it: words between blanks,
// quoted as a whole or not at all, without escapes. ok is false for what cannot
// be written so.
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

// startShell starts a process.
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
	// Without HOME it keeps no history of its commands in a file.
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

// answer is what the shell says of a command.
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

// lastWordsTimeout is how long the last messages of a process are waited for that gave
// no answer: one that has ended has written them.
const lastWordsTimeout = time.Second

// ask runs a command. unusable is true when the process cannot be used any more.
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
		// What it said last may be on its way still, if it ended.
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
	if code == 1 { // as a process, it would have ended with 0
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

// end lets an idle process go.
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

// kill kills a process with all it started, and reports whether it is gone.
func (sh *shell) kill() bool {
	gone := sh.process.Kill(reapGrace)
	_ = sh.in.Close()
	_ = sh.pipe.Close()
	return gone
}

// boundedReader fails when an answer is larger than can be.
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
