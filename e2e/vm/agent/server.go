package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/carve-csi/carve/e2e/vm/guest"
	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"
)

// outputDelay bounds the wait for the output of processes that a command has
// left behind, holding its stdout or stderr, once it has ended itself.
const outputDelay = 2 * time.Second

// Server answers the requests of clients.
type Server struct {
	// Status is called for every status request.
	Status func() guest.Status
	// PowerOff is called, after the answer was sent, when a client asks for it.
	PowerOff func()
	// Environment is what commands are run with, besides what a request adds.
	Environment []string
}

// Serve answers requests on the byte stream until it ends.
func (s *Server) Serve(stream io.ReadWriteCloser) error {
	session, err := yamux.Server(stream, sessionConfig())
	if err != nil {
		return fmt.Errorf("serve the agent: %w", err)
	}
	defer func() { _ = session.Close() }()
	for {
		connection, err := session.Accept()
		if err != nil {
			return fmt.Errorf("serve the agent: %w", err)
		}
		go s.answer(connection)
	}
}

// ServeConn answers the one request of a connection that is a stream by itself.
func (s *Server) ServeConn(connection net.Conn) { s.answer(connection) }

func (s *Server) answer(connection net.Conn) {
	defer connection.Close()
	reader := bufio.NewReaderSize(connection, maxFrame)
	line, err := reader.ReadBytes('\n')
	if err != nil {
		return
	}
	frames := &frameWriter{w: connection}
	var req request
	var res result
	if err = json.Unmarshal(line, &req); err == nil {
		res, err = s.carryOut(req, reader, frames)
	}
	if err != nil {
		res.Error = err.Error()
	}
	payload, err := json.Marshal(res)
	if err != nil {
		return
	}
	if frames.write(kindResult, payload) == nil && req.Op == opPowerOff && res.Error == "" {
		s.PowerOff()
	}
}

func (s *Server) carryOut(req request, reader io.Reader, frames *frameWriter) (result, error) {
	switch req.Op {
	case opExec:
		return s.exec(req, reader, frames)
	case opPut:
		return result{}, put(req, reader)
	case opStatus:
		data, err := json.Marshal(s.Status())
		return result{Data: data}, err
	case opPowerOff:
		return result{}, nil
	default:
		return result{}, fmt.Errorf("unknown operation %q", req.Op)
	}
}

func (s *Server) exec(req request, reader io.Reader, frames *frameWriter) (result, error) {
	if len(req.Argv) == 0 {
		return result{}, errors.New("no command given")
	}
	command := exec.Command(req.Argv[0], req.Argv[1:]...)
	command.Dir = req.Dir
	if command.Dir == "" {
		command.Dir = "/"
	}
	command.Env = append(append([]string{}, s.Environment...), req.Env...)
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	command.WaitDelay = outputDelay
	if req.TTY {
		return runOnTerminal(command, reader, frames)
	}
	command.Stdout = kindWriter{frames, kindStdout}
	command.Stderr = kindWriter{frames, kindStderr}
	stdin, err := command.StdinPipe()
	if err != nil {
		return result{}, err
	}
	if err := command.Start(); err != nil {
		return result{}, err
	}
	go func() {
		input(reader, stdin, command.Process.Pid, nil)
	}()
	return ended(command.Wait())
}

// input feeds a command from the client's frames. When the client hangs up, the
// command's process group is killed; after the command's end that is a no-op
// unless it left children behind, which must not outlive the request either.
func input(reader io.Reader, stdin io.WriteCloser, pid int, resize func(rows, columns uint16)) {
	for {
		kind, payload, err := readFrame(reader)
		if err != nil {
			_ = stdin.Close()
			_ = unix.Kill(-pid, unix.SIGKILL)
			return
		}
		switch {
		case kind == kindStdin && len(payload) == 0:
			_ = stdin.Close()
		case kind == kindStdin:
			// A command that does not read its input is no error.
			_, _ = stdin.Write(payload)
		case kind == kindSignal && len(payload) == 1:
			_ = unix.Kill(-pid, unix.Signal(payload[0]))
		case kind == kindResize && len(payload) == 4 && resize != nil:
			resize(uint16(payload[0])<<8|uint16(payload[1]), uint16(payload[2])<<8|uint16(payload[3]))
		}
	}
}

// ended turns what Wait returned into a result.
func ended(err error) (result, error) {
	var exit *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return result{}, nil
	case errors.As(err, &exit):
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return result{Code: 128 + int(status.Signal())}, nil
		}
		return result{Code: exit.ExitCode()}, nil
	default:
		return result{}, err
	}
}

func put(req request, reader io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(req.Path), 0o755); err != nil {
		return err
	}
	partial := req.Path + ".partial"
	file, err := os.OpenFile(partial, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, os.FileMode(req.Mode))
	if err != nil {
		return err
	}
	for {
		kind, payload, err := readFrame(reader)
		if err == nil && kind == kindStdin && len(payload) > 0 {
			if _, err = file.Write(payload); err == nil {
				continue
			}
		}
		if err != nil {
			return errors.Join(err, file.Close(), os.Remove(partial))
		}
		break
	}
	// The umask may have taken bits away.
	return errors.Join(file.Chmod(os.FileMode(req.Mode)), file.Close(), os.Rename(partial, req.Path))
}
