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

// final are the lines of failures that a second run does not disprove: what was left behind, data
// races, and failures of tests whose course is drawn from a seed, which another run does not repeat.
var final = regexp.MustCompile(`DATA RACE|race detected|left behind|\[rapid\]|-seed \d|CARVE_SEED=`)

// excerpts keeps what failed tests wrote to their logs, so that the end of a long output
// says what went wrong. It is not safe for concurrent use.
type excerpts struct {
	current map[string]string // the test that prints now, by the machine
	lines   map[string][]string
	found   []string
	// final are the tests with a line that no second run disproves.
	final map[string]bool
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
		e.lines, e.final = map[string][]string{}, map[string]bool{}
	}
	if final.MatchString(line) {
		e.final[test] = true
	}
	if kept := e.lines[test]; len(kept) < keptLines {
		e.lines[test] = append(kept, line)
	} else if len(kept) == keptLines {
		e.lines[test] = append(kept, fmt.Sprintf("    (more than %d lines)", keptLines))
	}
}
