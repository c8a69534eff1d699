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

// repetition is true while vmtest prints again, at its end, what the failed tests printed.
type repetition bool

// has reports whether the line repeats an earlier one.
func (r *repetition) has(line string) bool {
	switch {
	case strings.HasPrefix(line, "=== FAILED "):
		*r = true
	case strings.HasPrefix(line, "ok  \t"), strings.HasPrefix(line, "FAIL\t"):
		*r = false
	}
	return bool(*r)
}

// timed is a test with the time that it took.
type timed struct {
	name string
	took time.Duration
}

// failedPackage is go test's line for a package that failed: with its time, or with a reason in
// brackets why it did not run.
var failedPackage = regexp.MustCompile(`^FAIL\t(\S+)(?:\t[0-9.]+s| \[.*\])$`)

// timeout begins the line with which tests end that took too long. The test that hung has no result.
const timeout = "panic: test timed out"

// counter counts tests by their results.
type counter struct {
	passed, failed, skipped int
	// broken are the names of the tests that failed, and what stands for a failure without a test.
	broken []string
	times  []timed
	// named is true after a test of the package that failed.
	named bool
}

func (c *counter) line(line string) {
	switch match := failedPackage.FindStringSubmatch(line); {
	case match != nil && !c.named:
		c.fail(match[1])
	case strings.Contains(line, timeout):
		c.fail("(timeout)")
	}
	if strings.HasPrefix(line, "FAIL\t") || strings.HasPrefix(line, "ok  \t") {
		c.named = false
	}
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
		c.named = true
		c.fail(match[2])
	}
}

func (c *counter) fail(name string) {
	c.failed++
	c.broken = append(c.broken, name)
}

// hasPassed reports whether the test of that name ended and did not fail.
func (c *counter) hasPassed(name string) bool {
	ended := slices.ContainsFunc(c.times, func(t timed) bool { return t.name == name })
	return ended && !slices.Contains(c.broken, name)
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
