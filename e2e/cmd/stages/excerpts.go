package main

import (
	"fmt"
	"regexp"
	"strings"
)

// keptLines bounds what is repeated of one failed test. The first lines are kept: they
// say what went wrong, and what follows describes the state of things.
const keptLines = 60

// begins is the line with which go test says which test prints what follows. What several
// machines print begins with the machine's name and a colon.
var begins = regexp.MustCompile(`^([\w.-]+: )?=== (?:RUN|CONT|NAME)\s+([^/\s]+)`)

// logged is a line that a test wrote to its log, or the continuation of one.
var logged = regexp.MustCompile(`^([\w.-]+: )?(?: {4}|panic:|WARNING: DATA RACE)`)

// excerpts keeps what failed tests wrote to their logs, so that the end of a long output
// says what went wrong. It is not safe for concurrent use.
type excerpts struct {
	current map[string]string // the test that prints now, by the machine
	lines   map[string][]string
	found   []string
}

func (e *excerpts) line(line string) {
	if match := begins.FindStringSubmatch(line); match != nil {
		if e.current == nil {
			e.current = map[string]string{}
		}
		e.current[match[1]] = match[2]
		return
	}
	if match := result.FindStringSubmatch(line); match != nil {
		if match[1] == "FAIL" {
			e.found = append(e.found, strings.Join(append([]string{line}, e.lines[match[2]]...), "\n"))
		}
		delete(e.lines, match[2])
		return
	}
	match := logged.FindStringSubmatch(line)
	if match == nil {
		return
	}
	test := e.current[match[1]]
	if e.lines == nil {
		e.lines = map[string][]string{}
	}
	if kept := e.lines[test]; len(kept) < keptLines {
		e.lines[test] = append(kept, line)
	} else if len(kept) == keptLines {
		e.lines[test] = append(kept, fmt.Sprintf("    (more than %d lines)", keptLines))
	}
}
