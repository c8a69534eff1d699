package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/carve-csi/carve/e2e/vm/guest"
	"github.com/hashicorp/yamux"
)

// Client talks to the agent of one machine. It may be used by several
// goroutines at once.
type Client struct {
	open func(context.Context) (net.Conn, error)
	end  func() error
}

// NewClient returns a client on the byte stream to a machine's agent. Requests
// made before the machine is up wait for it. Close closes the stream.
func NewClient(stream io.ReadWriteCloser) (*Client, error) {
	session, err := yamux.Client(stream, sessionConfig())
	if err != nil {
		return nil, fmt.Errorf("talk to the agent: %w", err)
	}
	return &Client{
		open: func(context.Context) (net.Conn, error) { return session.Open() },
		end:  session.Close,
	}, nil
}

// NewDialer returns a client that opens each stream by calling dial, for a
// machine whose byte stream is held by another process (see Relay).
func NewDialer(dial func(context.Context) (net.Conn, error)) *Client {
	return &Client{open: dial, end: func() error { return nil }}
}

// Close ends all requests that run.
func (c *Client) Close() error { return c.end() }

// Relay passes each connection of the listener on to the agent as a stream of
// its own, until the listener is closed.
func (c *Client) Relay(listener net.Listener) error {
	for {
		connection, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("relay to the agent: %w", err)
		}
		go c.relay(connection)
	}
}

func (c *Client) relay(connection net.Conn) {
	defer connection.Close()
	stream, err := c.open(context.Background())
	if err != nil {
		return
	}
	defer stream.Close()
	go func() {
		// The caller ended its side: it has hung up, for it never half-closes.
		_, _ = io.Copy(stream, connection)
		_ = stream.Close()
	}()
	_, _ = io.Copy(connection, stream)
}

// Command is what Run runs. Argv[0] is looked up in the machine's PATH.
type Command struct {
	Argv []string
	// Dir is the working directory, "/" when empty.
	Dir string
	// Env is added to a basic environment (PATH, HOME, TERM).
	Env            []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// TTY gives the command a pseudo-terminal. All its output goes to Stdout.
	TTY bool
	// Resize delivers the terminal's rows and columns, at first and when they change.
	Resize <-chan [2]uint16
}

// Run runs a command in the machine and returns its exit code; 128 plus the
// signal's number where a signal ended it. An error means that it could not be
// run or did not end: ErrGone where the machine went away. When ctx ends, the
// command and what it started are killed.
func (c *Client) Run(ctx context.Context, command Command) (int, error) {
	req := request{Op: opExec, Argv: command.Argv, Dir: command.Dir, Env: command.Env, TTY: command.TTY}
	stdin := command.Stdin
	if stdin == nil {
		stdin = bytes.NewReader(nil)
	}
	res, err := c.do(ctx, req, stdin, command.Stdout, command.Stderr, command.Resize)
	return res.Code, err
}

// Output runs a command without input and returns what it wrote. Unlike Run it
// returns an error, with what was written to stderr, for any exit code but 0.
func (c *Client) Output(ctx context.Context, argv ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	code, err := c.Run(ctx, Command{Argv: argv, Stdout: &stdout, Stderr: &stderr})
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d: %s", code, bytes.TrimSpace(stderr.Bytes()))
	}
	if err != nil {
		return stdout.String(), fmt.Errorf("%v: %w", argv, err)
	}
	return stdout.String(), nil
}

// Put writes a file, whole, from content. The file appears by rename.
func (c *Client) Put(ctx context.Context, path string, mode os.FileMode, content io.Reader) error {
	req := request{Op: opPut, Path: path, Mode: uint32(mode.Perm())}
	if _, err := c.do(ctx, req, content, nil, nil, nil); err != nil {
		return fmt.Errorf("put %s: %w", path, err)
	}
	return nil
}

// Status reports how far the machine's set-up is.
func (c *Client) Status(ctx context.Context) (guest.Status, error) {
	var status guest.Status
	res, err := c.do(ctx, request{Op: opStatus}, nil, nil, nil, nil)
	if err != nil {
		return status, err
	}
	if err := json.Unmarshal(res.Data, &status); err != nil {
		return status, fmt.Errorf("read the agent's status: %w", err)
	}
	return status, nil
}

// PowerOff asks the machine to stop its services, unmount its file systems and
// switch itself off. It returns when the machine has agreed, not when it is off.
func (c *Client) PowerOff(ctx context.Context) error {
	_, err := c.do(ctx, request{Op: opPowerOff}, nil, nil, nil, nil)
	return err
}

// do carries out one request.
func (c *Client) do(ctx context.Context, req request, stdin io.Reader, stdout, stderr io.Writer, resize <-chan [2]uint16) (result, error) {
	stream, err := c.open(ctx)
	if err != nil {
		return result{}, errors.Join(ErrGone, err)
	}
	defer stream.Close()
	stop := context.AfterFunc(ctx, func() { _ = stream.Close() })
	defer stop()
	line, err := json.Marshal(req)
	if err != nil {
		return result{}, fmt.Errorf("encode a request: %w", err)
	}
	if _, err := stream.Write(append(line, '\n')); err != nil {
		return result{}, gone(ctx, err)
	}
	frames := &frameWriter{w: stream}
	if stdin != nil {
		// The copy ends with its input or, at the latest, when the stream is closed.
		go func() {
			_, _ = io.Copy(kindWriter{frames, kindStdin}, stdin)
			_ = frames.write(kindStdin, nil)
		}()
	}
	done := make(chan struct{})
	defer close(done)
	if resize != nil {
		go sendSizes(frames, resize, done)
	}
	return receive(ctx, stream, stdout, stderr)
}

func sendSizes(frames *frameWriter, resize <-chan [2]uint16, done <-chan struct{}) {
	for {
		select {
		case size := <-resize:
			payload := []byte{byte(size[0] >> 8), byte(size[0]), byte(size[1] >> 8), byte(size[1])}
			if frames.write(kindResize, payload) != nil {
				return
			}
		case <-done:
			return
		}
	}
}

func receive(ctx context.Context, stream net.Conn, stdout, stderr io.Writer) (result, error) {
	reader := bufio.NewReaderSize(stream, maxFrame)
	for {
		kind, payload, err := readFrame(reader)
		if err != nil {
			return result{}, gone(ctx, err)
		}
		switch kind {
		case kindStdout, kindStderr:
			w := stdout
			if kind == kindStderr {
				w = stderr
			}
			if w == nil {
				continue
			}
			if _, err := w.Write(payload); err != nil {
				return result{}, fmt.Errorf("pass on a command's output: %w", err)
			}
		case kindResult:
			var res result
			if err := json.Unmarshal(payload, &res); err != nil {
				return result{}, fmt.Errorf("read the agent's answer: %w", err)
			}
			if ctx.Err() != nil {
				return res, ctx.Err() // The command was killed for it.
			}
			if res.Error != "" {
				return res, errors.New(res.Error)
			}
			return res, nil
		default:
			return result{}, fmt.Errorf("the agent sent a frame of the unknown kind %d", kind)
		}
	}
}

func gone(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(ErrGone, err)
}
