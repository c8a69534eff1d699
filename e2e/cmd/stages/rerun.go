package main

import (
	"context"
	"io"
	"strings"
)

// mostFlaky is how many tests of all stages may fail and be run once more. Where more fail,
// something is wrong with Carve, or with the machine.
const mostFlaky = 2

// rerunFailed runs the stages' failed tests once more, one stage after the other, where that may
// show that they are flaky.
func rerunFailed(ctx context.Context, root string, out io.Writer, stages []*stage) {
	if !mayRerun(stages) {
		return
	}
	for _, s := range stages {
		if s.err != nil {
			s.rerun(ctx, root, out)
		}
	}
}

// mayRerun reports whether a second run can show that all failures were flaky: they are few, each
// is that of a test, and none is final.
func mayRerun(stages []*stage) bool {
	sum := 0
	for _, s := range stages {
		for _, name := range s.tests.broken {
			if !strings.HasPrefix(name, "Test") || s.failures.final[name] {
				return false
			}
		}
		sum += len(s.tests.broken)
	}
	return sum > 0 && sum <= mostFlaky
}

// rerun runs the failed tests of a stage once more, alone, and takes them for flaky if all pass.
// The target gets their names in the variable RUN.
func (s *stage) rerun(ctx context.Context, root string, out io.Writer) {
	names := s.tests.broken
	again := newStage(s.target, out, false)
	again.run(ctx, root, "RUN=^("+strings.Join(names, "|")+")$$")
	s.took += again.took
	s.processor += again.processor
	if again.err != nil {
		return
	}
	for _, name := range names {
		if !again.tests.hasPassed(name) {
			return
		}
	}
	s.err, s.flaky = nil, names
	s.tests.passed, s.tests.failed, s.tests.broken = s.tests.passed+len(names), s.tests.failed-len(names), nil
}
