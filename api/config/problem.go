package config

import (
	"fmt"
	"strings"
)

// Problem is one error in a configuration file.
type Problem struct {
	File string
	// Line and Column count from 1; zero if unknown.
	Line, Column int
	// Key is a path such as "deviceClasses[0].medium"; empty for the whole file.
	Key string
	// Given is the file's value, or empty.
	Given string
	// Reason says what is wrong or allowed.
	Reason string
}

// String returns one line: file:line:column: key: given: reason.
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

// Problems are all errors in a file, in its order. As an error it is never empty.
type Problems []Problem

// Error returns the first problem, in one line, and the number of others.
func (p Problems) Error() string {
	if len(p) == 1 {
		return p[0].String()
	}
	return fmt.Sprintf("%s (and %d more)", p[0], len(p)-1)
}
