package agent

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

// Operations of a request.
const (
	opExec     = "exec"
	opPut      = "put"
	opStatus   = "status"
	opPowerOff = "poweroff"
)

// Kinds of frame.
const (
	kindStdin  = 1 // to the server; an empty payload ends the input
	kindSignal = 2 // to the server; the payload's one byte is the signal
	kindStdout = 3
	kindStderr = 4
	kindResult = 5 // to the client, the last frame: JSON of a result
	kindResize = 6 // to the server; the payload is rows and columns, two bytes each
)

// maxFrame bounds the payload of a frame, in bytes.
const maxFrame = 64 << 10

// request is the first line of a stream.
type request struct {
	Op   string   `json:"op"`
	Argv []string `json:"argv,omitempty"`
	Dir  string   `json:"dir,omitempty"`
	Env  []string `json:"env,omitempty"`
	// TTY asks for a pseudo-terminal; output then comes as stdout alone.
	TTY bool `json:"tty,omitempty"`
	// Path and Mode are those of the file that a put writes.
	Path string `json:"path,omitempty"`
	Mode uint32 `json:"mode,omitempty"`
}

// result is the last frame of a stream.
type result struct {
	Code  int             `json:"code"`
	Error string          `json:"error,omitempty"`
	Data  json.RawMessage `json:"data,omitempty"`
}

// frameWriter writes frames; it may be used by several goroutines.
type frameWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (f *frameWriter) write(kind byte, payload []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	buffer := make([]byte, 5, 5+len(payload))
	buffer[0] = kind
	binary.BigEndian.PutUint32(buffer[1:], uint32(len(payload)))
	_, err := f.w.Write(append(buffer, payload...))
	return err
}

// kindWriter is an io.Writer that makes a frame of every chunk.
type kindWriter struct {
	frames *frameWriter
	kind   byte
}

func (k kindWriter) Write(p []byte) (int, error) {
	total := 0
	for len(p) > 0 {
		n := min(len(p), maxFrame)
		if err := k.frames.write(k.kind, p[:n]); err != nil {
			return total, err
		}
		total += n
		p = p[n:]
	}
	return total, nil
}

func readFrame(r io.Reader) (kind byte, payload []byte, err error) {
	var header [5]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, err
	}
	length := binary.BigEndian.Uint32(header[1:])
	if length > maxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes, allowed are %d", length, maxFrame)
	}
	payload = make([]byte, length)
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, err
	}
	return header[0], payload, nil
}

// sessionConfig is yamux without its timers: an emulated machine on a busy host
// may pause for long, and the end of the machine closes the stream anyway.
func sessionConfig() *yamux.Config {
	config := yamux.DefaultConfig()
	config.EnableKeepAlive = false
	config.ConnectionWriteTimeout = 10 * time.Minute
	config.StreamOpenTimeout = 0
	config.StreamCloseTimeout = 10 * time.Second
	config.MaxStreamWindowSize = 4 << 20
	config.LogOutput = io.Discard
	return config
}

// ErrGone is returned when the machine ended before it answered.
var ErrGone = errors.New("the machine is gone")
