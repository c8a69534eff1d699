// Command stages runs targets of make as the stages of one proof, and ends with a table
// of their times and numbers of tests:
//
//	stages [-at-once N] [-strict] [-condense TARGET,...] [-nice TARGET,...] [-first TARGET] TARGET...
//
// The targets begin in the order in which they are given, and at most N run at once. Each line
// that is printed begins with its target. When a target fails, the others run all the same: one
// run shows all that is wrong. The exit code is 1 then. A target named with -nice gives way to
// the others: one that compiles for long does not slow down machines and clusters. The target
// named with -first runs before all others, but beside those that give way.
//
// A few tests that failed are run once more when all targets have ended, see
// rerunFailed. Those that pass
// then are flaky: the table names them, and the exit code is 0.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/carve-csi/carve/e2e/checkout"
)

// killDelay is how long make and its children have to clean up after an interrupt.
const killDelay = time.Minute

var (
	errFailed    = errors.New("a stage failed")
	errFirst     = errors.New("the first target failed")
	errNoTargets = errors.New("no targets to run")
)

// options are lists of targets, and how they run.
type options struct {
	targets []string
	// atOnce is how many of them run at once.
	atOnce int
	// first runs before all targets that are not nice; empty: nothing does.
	first           string
	condensed, nice []string
	strict          bool
}

func main() {
	atOnce := flag.Int("at-once", 1, "`how many` targets run at once, the one named with -first not counted")
	condense := flag.String("condense", "", "`targets`, with commas between them, of whose packages with passed tests only the result is printed")
	nice := flag.String("nice", "", "`targets`, with commas between them, that run with a lower priority")
	first := flag.String("first", "", "the `target` that runs before all that do not give way")
	strict := flag.Bool("strict", false, "run no failed test once more")
	flag.Parse()
	o := options{
		targets: flag.Args(), atOnce: *atOnce, first: *first, strict: *strict,
		condensed: strings.Split(*condense, ","), nice: strings.Split(*nice, ","),
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root, err := checkout.Root()
	if err == nil {
		err = run(ctx, os.Stdout, root, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "stages:", err)
		os.Exit(1)
	}
}

// run runs the targets, and then what failed, unless strict.
func run(ctx context.Context, out io.Writer, root string, o options) error {
	if len(o.targets) == 0 {
		return errNoTargets
	}
	started := time.Now()
	idle, err := readIdle()
	if err != nil {
		return err
	}
	var all []*stage
	shared := &lockedWriter{out: out}
	stageOf := func(target string) *stage {
		s := newStage(target, shared, slices.Contains(o.condensed, target))
		s.nice = slices.Contains(o.nice, target)
		all = append(all, s)
		return s
	}
	var group sync.WaitGroup
	// ready is closed when stages that do not give way may begin, failed holds why they may not.
	ready := make(chan struct{})
	var failed error
	if o.first == "" {
		close(ready)
	} else {
		first := stageOf(o.first)
		group.Go(func() {
			defer close(ready)
			if first.run(ctx, root); first.err != nil {
				failed = errFirst
			}
		})
	}
	waiting := make(chan *stage, len(o.targets))
	for _, target := range o.targets {
		waiting <- stageOf(target)
	}
	close(waiting)
	for range max(o.atOnce, 1) {
		group.Go(func() {
			for s := range waiting {
				if !s.nice {
					<-ready
					if s.err = failed; failed != nil {
						continue
					}
				}
				s.run(ctx, root)
			}
		})
	}
	group.Wait()
	if !o.strict {
		rerunFailed(ctx, root, shared, all)
	}
	took := time.Since(started)
	share, err := idle.since()
	if err != nil {
		return err
	}
	return printTable(out, all, took, share)
}

// lockedWriter writes one line of one stage at a time.
type lockedWriter struct {
	mu  sync.Mutex
	out io.Writer
}

func (w *lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.Write(b)
}

// stage is one target of make, and what became of it. One goroutine uses it at a time.
type stage struct {
	target string
	// nice is whether it runs with a lower priority.
	nice bool
	// print prints a line of the stage; lines passes on what make prints.
	print func(string)
	lines *lineReader
	// held passes on what is held back until a package's result is known.
	held     func()
	repeated repetition
	tests    counter
	// failures is what the tests that failed wrote to their logs, last the last lines of all.
	failures excerpts
	last     []string
	// took is how long the stage ran, processor how long it and its children kept a processor.
	took, processor time.Duration
	err             error
	// flaky are the tests that failed and passed in a second run.
	flaky []string
}

func newStage(target string, out io.Writer, condensed bool) *stage {
	s := &stage{target: target, held: func() {}}
	s.print = func(line string) { fmt.Fprintf(out, "%s │ %s\n", target, line) }
	pass := s.print
	if condensed {
		c := &condenser{print: s.print}
		pass, s.held = c.line, c.flush
	}
	s.lines = &lineReader{line: func(line string) {
		if !s.repeated.has(line) {
			s.tests.line(line)
			s.failures.line(line)
			if s.last = append(s.last, line); len(s.last) > keptLines {
				s.last = s.last[1:]
			}
		}
		pass(line)
	}}
	return s
}

// run runs the target in the folder of the Makefile, with variables of make.
func (s *stage) run(ctx context.Context, root string, variables ...string) {
	if ctx.Err() != nil {
		s.err = context.Cause(ctx)
		return
	}
	started := time.Now()
	// The tests' names are counted, so they must be printed.
	argv := append([]string{"make", "--no-print-directory", s.target, "VERBOSE=-v"}, variables...)
	if s.nice {
		argv = append([]string{"nice"}, argv...)
	}
	command := exec.CommandContext(ctx, argv[0], argv[1:]...)
	command.Dir = root
	command.Stdout, command.Stderr = s.lines, s.lines
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = killDelay
	s.err = command.Run()
	s.lines.flush()
	s.took = time.Since(started)
	if state := command.ProcessState; state != nil {
		s.processor = state.UserTime() + state.SystemTime()
	}
	result := "passed"
	if s.err != nil {
		s.held()
		result = "failed: " + s.err.Error()
		if len(s.tests.broken) == 0 {
			s.tests.fail("(" + s.target + ")")
			s.failures.found = append(s.failures.found, strings.Join(s.last, "\n"))
		}
	}
	s.print(fmt.Sprintf("=== %s %s after %s", s.target, result, s.took.Round(time.Second)))
}
