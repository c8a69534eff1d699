package main

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
)

// keptLines bounds what is repeated at the end of what a failed test printed. The first
// lines are kept: they say what went wrong, and what follows describes the state of things.
const keptLines = 40

// failures finds the failed tests in what go test prints with -test.v, and what was
// printed before each, so that the end of a long log says what went wrong. It may
// be written to from several goroutines.
type failures struct {
	mu    sync.Mutex
	rest  []byte
	lines []string // of the test that runs, the first keptLines
	found []string // a failed test each, several lines
}

// Write implements io.Writer; it never fails.
func (f *failures) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rest = append(f.rest, b...)
	for {
		end := bytes.IndexByte(f.rest, '\n')
		if end < 0 {
			return len(b), nil
		}
		f.line(string(f.rest[:end]))
		f.rest = f.rest[end+1:]
	}
}

func (f *failures) line(line string) {
	word := strings.TrimLeft(line, " ")
	switch {
	case strings.HasPrefix(line, "=== RUN") && !strings.Contains(line, "/"):
		f.lines = nil
	case strings.HasPrefix(word, "--- FAIL"), strings.HasPrefix(word, "panic:"):
		f.found = append(f.found, strings.Join(append(f.lines, line), "\n"))
		f.lines = nil
		return
	}
	if len(f.lines) < keptLines {
		f.lines = append(f.lines, line)
	}
}

// has reports whether go test said that the test failed.
func (f *failures) has(test string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.found, func(failure string) bool {
		return strings.Contains("\n"+failure, "\n--- FAIL: "+test+" (")
	})
}

// report prints the failed tests of a package and the problems with it as a whole.
func (f *failures) report(out io.Writer, importPath string, problems []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, failure := range f.found {
		fmt.Fprintf(out, "=== FAILED in %s\n%s\n", importPath, failure)
	}
	fmt.Fprintf(out, "=== FAILED %s: %s\n", importPath, strings.Join(problems, "; "))
}
