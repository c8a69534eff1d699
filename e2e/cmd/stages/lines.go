package main

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// lineReader calls line with each whole line that is written to it. It may be written to
// from several goroutines.
type lineReader struct {
	line func(string)

	mu   sync.Mutex
	rest []byte
}

// Write implements io.Writer; it never fails.
func (r *lineReader) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rest = append(r.rest, b...)
	for {
		end := bytes.IndexByte(r.rest, '\n')
		if end < 0 {
			return len(b), nil
		}
		r.line(string(r.rest[:end]))
		r.rest = r.rest[end+1:]
	}
}

// flush passes on what came without a line's end.
func (r *lineReader) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.rest) > 0 {
		r.line(string(r.rest))
		r.rest = nil
	}
}

// result is the line of a test that has ended, as go test prints it with -v. What several
// machines print begins with a name and a colon. Parts of tests are indented: they count
// with their tests.
var result = regexp.MustCompile(`^(?:[\w.-]+: )?--- (PASS|FAIL|SKIP): (\S+) \(([0-9.]+)s\)`)

// timed is a test with the time that it took.
type timed struct {
	name string
	took time.Duration
}

// counter counts tests by their results.
type counter struct {
	passed, failed, skipped int
	// broken are the names of the tests that failed.
	broken []string
	times  []timed
}

func (c *counter) line(line string) {
	match := result.FindStringSubmatch(line)
	if match == nil {
		return
	}
	if took, err := time.ParseDuration(match[3] + "s"); err == nil {
		c.times = append(c.times, timed{match[2], took})
	}
	switch match[1] {
	case "PASS":
		c.passed++
	case "SKIP":
		c.skipped++
	case "FAIL":
		// vmtest repeats at its end what failed.
		if slices.Contains(c.broken, match[2]) {
			return
		}
		c.failed++
		c.broken = append(c.broken, match[2])
	}
}

// condenser holds back what go test prints of a package until its result is known, and
// passes on only the result where all tests passed. With several packages, go test prints
// one after the other.
type condenser struct {
	print func(string)
	held  []string
}

func (c *condenser) line(line string) {
	switch {
	case strings.HasPrefix(line, "ok  \t"), strings.HasPrefix(line, "?   \t"), strings.Contains(line, "[no test files]"):
		c.held = nil
	case strings.HasPrefix(line, "FAIL"):
		c.flush()
	default:
		c.held = append(c.held, line)
		return
	}
	c.print(line)
}

// flush passes on what is held back.
func (c *condenser) flush() {
	for _, held := range c.held {
		c.print(held)
	}
	c.held = nil
}
