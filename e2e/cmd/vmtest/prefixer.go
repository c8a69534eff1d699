package main

import (
	"bytes"
	"io"
	"sync"
)

// prefixer writes whole lines, each after a prefix, so that what several machines
// print can be distinguished. What is left without a line's end is written with the
// next line. It may be written to from several goroutines.
type prefixer struct {
	prefix string
	out    io.Writer

	mu   sync.Mutex
	rest []byte
}

// Write implements io.Writer.
func (p *prefixer) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rest = append(p.rest, b...)
	end := bytes.LastIndexByte(p.rest, '\n')
	if end < 0 {
		return len(b), nil
	}
	var lines []byte
	for line := range bytes.Lines(p.rest[:end+1]) {
		lines = append(append(lines, p.prefix...), line...)
	}
	p.rest = append([]byte(nil), p.rest[end+1:]...)
	_, err := p.out.Write(lines) // At once: others write there, too.
	return len(b), err
}
