package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/carve-csi/carve/e2e/checkout"
	"github.com/carve-csi/carve/e2e/preflight"
	"github.com/carve-csi/carve/e2e/vm"
	"github.com/carve-csi/carve/e2e/vm/agent"
	"github.com/carve-csi/carve/e2e/vm/leftovers"
)

// options are the command's flags and arguments.
type options struct {
	packages           []string
	run, skip, bench   string
	count              int
	race               bool
	timeout            time.Duration
	with, env          []string
	machines           int
	memory, pmem, disk int
	udev, systemd      bool
	selinux            bool
	durable, virtual   bool
	// kernel is the suite of Debian whose kernel the machine boots, or "" for its own.
	kernel string
}

// hardware reports whether the machine must be a virtual one, which has persistent memory.
func (o options) hardware() bool {
	return o.virtual || o.selinux || o.durable || o.kernel != ""
}

// pmemMiB is the size of the machine's persistent memory.
func (o options) pmemMiB() int {
	if o.hardware() {
		return o.pmem
	}
	return 0
}

// tags are the build tags of the tests that can run, with commas between them.
func (o options) tags() string {
	tags := []string{tag}
	if o.selinux {
		tags = append(tags, "selinux")
	}
	if o.virtual {
		tags = append(tags, "virtual")
	}
	if o.kernel != "" {
		tags = append(tags, "oldkernel")
	}
	return strings.Join(tags, ",")
}

// run compiles, boots, tests. It returns an exitError when a test failed.
func run(ctx context.Context, o options) (err error) {
	started := time.Now()
	if err := preflight.Check(preflight.Machines(o.machines, o.memory+o.pmemMiB())); err != nil {
		return err
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
		return errors.New("none of the packages has tests that are meant")
	}
	fmt.Fprintf(os.Stderr, "vmtest: compiled in %s, booting\n", elapsed(started))
	builder, err := newBuilder(ctx, o, root, dir)
	if err != nil {
		return err
	}
	if o.selinux {
		if err := compilePolicy(ctx, build); err != nil {
			return err
		}
	}
	return testAll(ctx, builder, packages)
}

// compileAll compiles the packages that have tests which are meant.
func compileAll(ctx context.Context, o options, root, build string) ([]testPackage, error) {
	packages, err := list(ctx, root, o.packages, o.tags())
	if err != nil {
		return nil, err
	}
	for _, name := range o.with {
		if err := compileCommand(ctx, root, build, name, o.race); err != nil {
			return nil, err
		}
	}
	if o.run == "" && o.bench == "" {
		elsewhere := ""
		if o.tags() != tag {
			elsewhere = tag
		}
		anywhere, err := list(ctx, root, o.packages, elsewhere)
		if err != nil {
			return nil, err
		}
		if packages, err = withKernelTests(packages, anywhere); err != nil {
			return nil, err
		}
	}
	var compiled []testPackage
	for _, p := range packages {
		if len(p.files()) == 0 {
			continue
		}
		if err := compileTests(ctx, root, build, p, o.tags(), o.race); err != nil {
			return nil, err
		}
		if o.run != "" {
			if p.tests, err = chosen(ctx, p, build, o.run); err != nil {
				return nil, err
			}
		}
		if o.skip != "" {
			skip, err := regexp.Compile(o.skip)
			if err != nil {
				return nil, fmt.Errorf("--skip: %w", err)
			}
			p.tests = slices.DeleteFunc(p.tests, skip.MatchString)
		}
		if len(p.tests) > 0 || o.bench != "" {
			compiled = append(compiled, p)
		}
	}
	return compiled, nil
}

// job is one run of a package's compiled tests.
type job struct {
	testPackage
	// test is the name of the test that runs, or "" for benchmarks.
	test string
	// arguments say which test, or which benchmarks, run.
	arguments []string
}

// jobs are the runs of a package: one for each test, so that what a test leaves behind is
// found and named, and one for benchmarks.
func (o options) jobs(p testPackage) []job {
	common := []string{"-test.v=true", "-test.timeout=" + o.timeout.String(), fmt.Sprintf("-test.count=%d", o.count)}
	if o.skip != "" {
		common = append(common, "-test.skip="+o.skip)
	}
	var jobs []job
	_, parts, _ := strings.Cut(o.run, "/")
	for _, test := range p.tests {
		run := "^" + test + "$"
		if parts != "" {
			run += "/" + parts
		}
		jobs = append(jobs, job{p, test, append([]string{"-test.run=" + run}, common...)})
	}
	if o.bench != "" {
		jobs = append(jobs, job{p, "", append([]string{"-test.run=^$", "-test.bench=" + o.bench}, common...)})
	}
	return jobs
}

// testAll shares the tests among the machines. An error in one, such as that it cannot be started,
// ends the others' tests, too; a failed test does not, nor does a machine that goes away during one.
func testAll(ctx context.Context, b *builder, packages []testPackage) error {
	var jobs []job
	for _, p := range packages {
		jobs = append(jobs, b.options.jobs(p)...)
	}
	queue := make(chan job, len(jobs))
	for _, j := range jobs {
		queue <- j
	}
	close(queue)
	var workers []*worker
	machines := min(b.options.machines, len(jobs))
	for i := range machines {
		w, err := b.worker(i, machines > 1)
		if err != nil {
			return err
		}
		workers = append(workers, w)
	}
	results := &results{}
	group, ctx := errgroup.WithContext(ctx)
	for _, w := range workers {
		group.Go(func() error { return w.testAll(ctx, queue, results) })
	}
	err := group.Wait()
	// Last of all, where the reader of a long log looks first.
	for _, w := range workers {
		_, _ = w.report.WriteTo(os.Stdout)
	}
	failed := results.print(os.Stdout, packages)
	if err != nil {
		return err
	}
	if failed {
		return exitError{1}
	}
	return nil
}

// results are what became of the packages' tests. They may be added to from several
// goroutines.
type results struct {
	mu  sync.Mutex
	all map[string]*result
}

type result struct {
	passed, failed int
	took           time.Duration
}

func (r *results) add(p testPackage, ok bool, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[string]*result{}
	}
	one := r.all[p.ImportPath]
	if one == nil {
		one = &result{}
		r.all[p.ImportPath] = one
	}
	if one.took += took; ok {
		one.passed++
	} else {
		one.failed++
	}
}

// print prints a line for each package, as go test does, and reports whether one failed.
// A package whose tests were not run has none.
func (r *results) print(out io.Writer, packages []testPackage) (failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range packages {
		one := r.all[p.ImportPath]
		if one == nil {
			continue
		}
		word := "ok  "
		if one.failed > 0 {
			word, failed = "FAIL", true
		}
		fmt.Fprintf(out, "%s\t%s\t%.1fs\t(%d passed, %d failed)\n", word, p.ImportPath, one.took.Seconds(), one.passed, one.failed)
	}
	return failed
}

// testAll runs tests as long as there are any, in a new machine where there is none
// or the last one was left dirty.
func (w *worker) testAll(ctx context.Context, queue <-chan job, results *results) (err error) {
	var machine *vm.Machine
	var before leftovers.Snapshot
	defer func() {
		if machine != nil {
			// After an interrupt, machines are still stopped and folders removed.
			off, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
			defer cancel()
			err = errors.Join(err, machine.PowerOff(off))
		}
	}()
	for j := range queue {
		if machine == nil {
			started := time.Now()
			if machine, err = w.start(ctx); err != nil {
				return err
			}
			if before, err = leftovers.Take(ctx, machine.Agent()); err != nil {
				return err
			}
			if w.options.systemd || w.options.udev {
				before.Processes = nil
			}
			fmt.Fprintf(os.Stderr, "vmtest: the machine is up after %s (%s)\n", elapsed(started), w.platform.Accelerator)
		}
		failures := new(failures)
		out := io.MultiWriter(w.output(j.testPackage), failures)
		started := time.Now()
		code, problems, err := w.test(ctx, machine, j, before, out)
		if ctx.Err() != nil {
			return fmt.Errorf("%s %s: %w", j.ImportPath, j.arguments[0], errors.Join(err, context.Cause(ctx)))
		}
		if err != nil {
			// The next test starts in a new machine.
			problems = append(problems, fmt.Sprintf("the machine went away: %v", err))
		}
		results.add(j.testPackage, code == 0 && len(problems) == 0, time.Since(started))
		if code == 0 && len(problems) == 0 {
			continue
		}
		for _, problem := range problems {
			fmt.Fprintf(out, "    %s\n", problem)
		}
		if code != 0 {
			problems = append(problems, fmt.Sprintf("exit code %d", code))
		}
		if j.test != "" && !failures.has(j.test) {
			// For itself, the test passed, or it did not come to an end.
			fmt.Fprintf(out, "--- FAIL: %s (%.2fs)\n", j.test, time.Since(started).Seconds())
		}
		failures.report(&w.report, j.ImportPath, problems)
		machine.Kill()
		machine = nil
	}
	return nil
}

// test runs a job, and returns its exit code and what it left behind. What there was in
// the machine before is to be there after it, and nothing else.
func (b *builder) test(ctx context.Context, machine *vm.Machine, j job, before leftovers.Snapshot, out io.Writer) (code int, left []string, err error) {
	// The tests' own bound comes first, for it says which test hangs and where.
	bounded, cancel := context.WithTimeout(ctx, b.options.timeout+time.Minute)
	defer cancel()
	code, err = machine.Agent().Run(bounded, agent.Command{
		Argv: append([]string{filepath.Join(buildFolder, j.binary)}, j.arguments...), Dir: j.Dir,
		Env:    b.options.env,
		Stdout: out, Stderr: out,
	})
	if err != nil {
		return 0, nil, err
	}
	left, err = leftovers.Left(ctx, machine.Agent(), before)
	return code, left, err
}
