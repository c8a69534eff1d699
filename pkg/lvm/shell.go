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
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *json.Decoder
	pipe    *os.File
	bound   *boundedReader
	stderr  *lockedBuffer
	// ended is closed when the process is gone.
	ended    chan struct{}
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
func (r *Runner) RunFor(ctx context.Context, key, command string, args ...string) ([]byte, error) {
	if !r.Lasting || r.SystemDir == "" {
		return r.Run(ctx, command, args...)
	}
	start := time.Now()
	err := r.runInShell(ctx, key, command, args)
	if errors.Is(err, errNoShell) {
		return r.Run(ctx, command, args...)
	}
	if r.Observe != nil {
		r.Observe(ctx, Result{Command: command, Args: args, Duration: time.Since(start), Err: err})
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

func (r *Runner) runInShell(ctx context.Context, key, command string, args []string) error {
	line, ok := shellLine(command, args)
	slot := r.shells.slot(key)
	if !ok || slot == nil {
		return errNoShell
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	slot.mu.Lock()
	defer slot.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return &CommandError{Command: command, ExitCode: -1, Message: "not started: " + err.Error(), Err: timedOut(err)}
	}
	if slot.sh != nil && (slot.sh.commands >= shellCommands || slot.sh.isGone()) {
		slot.end()
	}
	if slot.sh == nil {
		sh, err := r.startShell()
		if err != nil {
			return errNoShell // a process of its own will tell what is wrong
		}
		slot.sh = sh
	}
	sh := slot.sh
	sh.commands++
	sh.stderr.reset()
	sh.bound.left = maxStdout
	type answered struct {
		err  error
		dead bool
	}
	done := make(chan answered, 1)
	go func() {
		dead, err := sh.ask(command, line)
		done <- answered{err, dead}
	}()
	select {
	case a := <-done:
		if a.dead {
			slot.sh = nil
			sh.kill(r)
		} else if r.shells.isClosed() {
			slot.end()
		}
		return a.err
	case <-ctx.Done():
	}
	slot.sh = nil
	e := &CommandError{Command: command, ExitCode: -1, Err: timedOut(ctx.Err()), Message: fmt.Sprintf("killed: %v", ctx.Err())}
	if !sh.kill(r) {
		e.Message = fmt.Sprintf("killed, but it hangs in the kernel: %v", ctx.Err())
	}
	if words := lastWords(sh.stderr.String()); words != "" {
		e.Message += ": " + words
	}
	return e
}

// shellLine writes a command as the lvm shell reads it: words between blanks,
// quoted as a whole or not at all, without escapes. ok is false for what cannot
// be written so.
func shellLine(command string, args []string) (line string, ok bool) {
	if len(args)+1 > shellWords {
		return "", false
	}
	var b strings.Builder
	b.WriteString(command)
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
		stderr: &lockedBuffer{b: headTailBuffer{limit: maxStderr}}, ended: make(chan struct{}),
	}
	sh.answers = json.NewDecoder(sh.bound)
	sh.cmd = exec.Command(r.Binary)
	// Without HOME it keeps no history of its commands in a file.
	sh.cmd.Env = append(commandEnv(dir), "LVM_REPORT_FD=3")
	sh.cmd.ExtraFiles = []*os.File{theirs}
	sh.cmd.Stderr = sh.stderr
	// A command must not go on when its lvmd was killed: the next one would not
	// know of it.
	sh.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	sh.cmd.WaitDelay = reapGrace
	if sh.in, err = sh.cmd.StdinPipe(); err == nil {
		err = sh.live()
	}
	if err != nil {
		pipe.Close()
		return nil, err
	}
	return sh, nil
}

// live starts the process and notes when it ends. The kernel kills it when the
// thread that started it ends, so that thread is kept, waiting.
func (sh *shell) live() error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := sh.cmd.Start()
		started <- err
		if err == nil {
			_ = sh.cmd.Wait()
			close(sh.ended)
		}
	}()
	return <-started
}

func (sh *shell) isGone() bool {
	select {
	case <-sh.ended:
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

// lastWordsPatience is how long what a process said is waited for that gave no answer:
// one that ended has said it.
const lastWordsPatience = time.Second

// ask runs a command. dead is true when the process cannot be used any more.
func (sh *shell) ask(command, line string) (dead bool, err error) {
	broken := func(what string, err error) error {
		message := fmt.Sprintf("%s: %v", what, err)
		if words := lastWords(sh.stderr.String()); words != "" {
			message += ": " + words
		}
		return &CommandError{Command: command, ExitCode: -1, Message: message, Err: err}
	}
	if _, err := io.WriteString(sh.in, line); err != nil {
		return true, broken("the lvm process takes no commands", err)
	}
	var a answer
	if err := sh.answers.Decode(&a); err != nil {
		// What it said last may be on its way still, if it ended.
		select {
		case <-sh.ended:
		case <-time.After(lastWordsPatience):
		}
		return true, broken("the lvm process gave no answer", err)
	}
	if len(a.Log) == 0 {
		return true, broken("the lvm process gave no status", io.ErrUnexpectedEOF)
	}
	last := a.Log[len(a.Log)-1]
	if last.Type != "status" || last.Context != "shell" || last.Object != "cmd" || last.Name != command {
		return true, broken("the lvm process spoke of something else", fmt.Errorf("%s %s", last.Type, last.Name))
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
	return false, newCommandError(command, code, words)
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
	case <-sh.ended:
	case <-time.After(shellGrace):
		_ = unix.Kill(-sh.cmd.Process.Pid, unix.SIGKILL)
	}
	_ = sh.pipe.Close()
}

// kill kills a process with all it started, and tells whether it is gone.
func (sh *shell) kill(r *Runner) bool {
	if !sh.isGone() {
		_ = unix.Kill(-sh.cmd.Process.Pid, unix.SIGKILL)
	}
	_ = sh.in.Close()
	select {
	case <-sh.ended:
		_ = sh.pipe.Close()
		return true
	case <-time.After(reapGrace):
	}
	_ = sh.pipe.Close()
	r.stuck.Add(1)
	go func() {
		<-sh.ended
		r.stuck.Add(-1)
	}()
	return false
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

// lockedBuffer is a headTailBuffer that is written and read at the same time.
type lockedBuffer struct {
	mu sync.Mutex
	b  headTailBuffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lockedBuffer) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = headTailBuffer{limit: l.b.limit}
}
