package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/carve-csi/carve/e2e/checkout"
	"github.com/carve-csi/carve/e2e/vm"
	"github.com/carve-csi/carve/e2e/vm/agent"
	"github.com/carve-csi/carve/e2e/vm/residue"
)

// options are the command's flags and arguments.
type options struct {
	packages           []string
	run, skip, bench   string
	count              int
	race               bool
	timeout            time.Duration
	with, env          []string
	machines, parts    int
	memory, pmem, disk int
	udev, systemd      bool
	durable            bool
}

// run compiles, boots, tests. It returns an exitError when a test failed.
func run(ctx context.Context, o options) (err error) {
	started := time.Now()
	if os.Geteuid() != 0 {
		return errors.New("the machine's disks and folders need root")
	}
	root, err := checkout.Root()
	if err != nil {
		return err
	}
	dir, remove, err := makeFolder()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	build := filepath.Join(dir, "build")
	if err := os.Mkdir(build, 0o755); err != nil {
		return err
	}
	packages, err := compileAll(ctx, o, root, build)
	if err != nil {
		return err
	}
	if len(packages) == 0 {
		return errors.New("none of the packages has tests")
	}
	fmt.Fprintf(os.Stderr, "vmtest: compiled in %s, booting\n", elapsed(started))
	builder, err := newBuilder(ctx, o, root, dir)
	if err != nil {
		return err
	}
	return testAll(ctx, builder, packages)
}

// testAll shares the packages among the machines. An error in one ends the others'
// tests, too; a failed test does not.
func testAll(ctx context.Context, b *builder, packages []testPackage) error {
	machines := min(b.options.machines, len(packages))
	queue := make(chan testPackage, len(packages))
	for _, p := range packages {
		queue <- p
	}
	close(queue)
	var workers []*worker
	for i := range machines {
		w, err := b.worker(i, machines > 1)
		if err != nil {
			return err
		}
		workers = append(workers, w)
	}
	var failed atomic.Bool
	group, ctx := errgroup.WithContext(ctx)
	for _, w := range workers {
		group.Go(func() error {
			ok, err := w.testAll(ctx, queue)
			if !ok {
				failed.Store(true)
			}
			return err
		})
	}
	err := group.Wait()
	// Last of all, where the reader of a long log looks first.
	for _, w := range workers {
		_, _ = w.report.WriteTo(os.Stdout)
	}
	if err != nil {
		return err
	}
	if failed.Load() {
		return exitError{1}
	}
	return nil
}

func compileAll(ctx context.Context, o options, root, build string) ([]testPackage, error) {
	listed, err := list(ctx, root, o.packages)
	if err != nil {
		return nil, err
	}
	for _, name := range o.with {
		if err := compileCommand(ctx, root, build, name, o.race); err != nil {
			return nil, err
		}
	}
	var packages []testPackage
	for _, p := range listed {
		if !p.hasTests() {
			fmt.Printf("?   \t%s\t[no test files]\n", p.ImportPath)
			continue
		}
		if err := compileTests(ctx, root, build, p, o.race); err != nil {
			return nil, err
		}
		parts, err := split(ctx, p, build, o.parts)
		if err != nil {
			return nil, err
		}
		packages = append(packages, parts...)
	}
	return packages, nil
}

// testAll runs the tests of packages as long as there are any, in a new machine
// where there is none or the last one was left dirty. It tells whether all passed.
func (w *worker) testAll(ctx context.Context, packages <-chan testPackage) (ok bool, err error) {
	var machine *vm.Machine
	defer func() {
		if machine != nil {
			// An interrupt ends the tests, not the good order.
			off, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
			defer cancel()
			err = errors.Join(err, machine.PowerOff(off))
		}
	}()
	ok = true
	for p := range packages {
		if machine == nil {
			started := time.Now()
			if machine, err = w.start(ctx); err != nil {
				return false, err
			}
			fmt.Fprintf(os.Stderr, "vmtest: the machine is up after %s (%s)\n", elapsed(started), w.accelerator)
		}
		failures := new(failures)
		out := io.MultiWriter(w.output(p), failures)
		fmt.Fprintf(out, "=== PACKAGE %s\n", p.title())
		started := time.Now()
		problems, err := w.test(ctx, machine, p, out)
		if err != nil {
			return false, fmt.Errorf("%s: %w", p.title(), err)
		}
		if len(problems) == 0 {
			fmt.Fprintf(out, "ok  \t%s\t%s\n", p.title(), elapsed(started))
			continue
		}
		ok = false
		for _, problem := range problems {
			fmt.Fprintf(out, "    %s\n", problem)
		}
		fmt.Fprintf(out, "FAIL\t%s\t%s\n", p.title(), elapsed(started))
		failures.report(&w.report, p.title(), problems)
		machine.Kill()
		machine = nil
	}
	return ok, nil
}

// test runs the tests of one package and says what is wrong.
func (b *builder) test(ctx context.Context, machine *vm.Machine, p testPackage, out io.Writer) ([]string, error) {
	before, err := residue.Take(ctx, machine.Agent())
	if err != nil {
		return nil, err
	}
	// The tests' own bound comes first, for it tells which test hangs and where.
	bounded, cancel := context.WithTimeout(ctx, b.options.timeout+time.Minute)
	defer cancel()
	argv := append([]string{filepath.Join(buildFolder, p.binary)}, b.options.testArguments(p.tests)...)
	code, err := machine.Agent().Run(bounded, agent.Command{
		Argv: argv, Dir: p.Dir,
		Env:    b.options.env,
		Stdout: out, Stderr: out,
	})
	if err != nil {
		return nil, err
	}
	var problems []string
	if code != 0 {
		problems = append(problems, fmt.Sprintf("exit code %d", code))
	}
	after, err := residue.Take(ctx, machine.Agent())
	if err != nil {
		return nil, err
	}
	return append(problems, residue.Compare(before, after)...), nil
}

// testArguments are those of a compiled test, of which only some tests may be
// meant.
func (o options) testArguments(tests []string) []string {
	run := o.run
	if len(tests) > 0 {
		run = "^(" + strings.Join(tests, "|") + ")$"
	}
	args := []string{"-test.v=true", "-test.timeout=" + o.timeout.String(), fmt.Sprintf("-test.count=%d", o.count)}
	for flag, value := range map[string]string{"run": run, "skip": o.skip, "bench": o.bench} {
		if value != "" {
			args = append(args, "-test."+flag+"="+value)
		}
	}
	return args
}
