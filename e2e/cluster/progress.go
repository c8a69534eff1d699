package cluster

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress prefixes lines with the seconds since it was made. It may be used by
// several goroutines.
type progress struct {
	mu      sync.Mutex
	output  io.Writer
	started time.Time
	line    []byte
}

func newProgress(output io.Writer) *progress {
	if output == nil {
		output = io.Discard
	}
	return &progress{output: output, started: time.Now()}
}

func (p *progress) say(format string, arguments ...any) { fmt.Fprintf(p, format+"\n", arguments...) }

// Write takes whole lines, or parts of lines.
func (p *progress) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range text {
		p.line = append(p.line, b)
		if b == '\n' {
			fmt.Fprintf(p.output, "[%5.1fs] %s", time.Since(p.started).Seconds(), p.line)
			p.line = p.line[:0]
		}
	}
	return len(text), nil
}
