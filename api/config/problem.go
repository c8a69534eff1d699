package config

import (
	"fmt"
	"strings"
)

// Problem is one thing wrong in a configuration file.
type Problem struct {
	File string
	// Line and Column count from 1; zero when they are not known.
	Line, Column int
	// Key is the path of the key, such as "deviceClasses[0].medium"; empty when
	// the file as a whole is meant.
	Key string
	// Given is what the file says, empty when it says nothing.
	Given string
	// Reason says what is allowed, or why the given is not.
	Reason string
}

// String is one line: file:line:column: key: given: reason.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", p.Line, p.Column)
	}
	b.WriteString(": ")
	if p.Key != "" {
		b.WriteString(p.Key + ": ")
	}
	if p.Given != "" {
		fmt.Fprintf(&b, "%q: ", p.Given)
	}
	b.WriteString(p.Reason)
	return b.String()
}

// Problems are all things wrong in a file, in the order of the file. It is
// never empty when returned as an error.
type Problems []Problem

// Error is the first problem, on one line, and how many more there are.
func (p Problems) Error() string {
	if len(p) == 1 {
		return p[0].String()
	}
	return fmt.Sprintf("%s (and %d more)", p[0], len(p)-1)
}
