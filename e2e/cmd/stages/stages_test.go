package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestTestsAreCountedWithoutTheirParts(t *testing.T) {
	s := newStage("target", new(strings.Builder), false)
	fmt.Fprint(s.lines, "=== RUN   TestA\n--- PASS: TestA (0.10s)\n    --- PASS: TestA/part (0.1s)\nlvmd: --- FAIL: TestB (1.0s)\n--- SK", "IP: TestC (0.0s)")
	s.lines.flush()
	if got := s.tests; got.passed != 1 || got.failed != 1 || got.skipped != 1 || !slices.Equal(got.broken, []string{"TestB"}) {
		t.Errorf("want one test each passed, failed (TestB) and skipped, got %+v", got)
	}
}

func TestOnlyTheResultOfAPackageThatPassedIsPrinted(t *testing.T) {
	var out strings.Builder
	s := newStage("t", &out, true)
	fmt.Fprint(s.lines, "=== RUN   TestA\n--- PASS: TestA (0.10s)\nPASS\nok  \tp\t0.1s\n?   \tq\t[no test files]\n"+
		"=== RUN   TestB\n    b_test.go:3: wrong\n--- FAIL: TestB (0.10s)\nFAIL\nFAIL\tr\t0.1s\n")
	want := "t │ ok  \tp\t0.1s\nt │ ?   \tq\t[no test files]\n" +
		"t │ === RUN   TestB\nt │     b_test.go:3: wrong\nt │ --- FAIL: TestB (0.10s)\nt │ FAIL\nt │ FAIL\tr\t0.1s\n"
	if got := out.String(); got != want {
		t.Errorf("want\n%sgot\n%s", want, got)
	}
}

func TestTheTableHasEveryStageAndEndsWithTheSum(t *testing.T) {
	stages := []*stage{
		{target: "a", tests: counter{passed: 3, times: []timed{{"TestSlow", 7 * time.Second}}}, took: 61 * time.Second, processor: 30 * time.Second},
		{target: "b", tests: counter{passed: 1, failed: 1, broken: []string{"TestB"}}, err: errors.New("exit status 1"),
			failures: excerpts{found: []string{"--- FAIL: TestB (1.00s)\n    b_test.go:1: why"}}},
	}
	var out strings.Builder
	if err := printTable(&out, stages, 2*time.Minute, 0.25); !errors.Is(err, errFailed) {
		t.Errorf("the error of a table with a failed stage: %v", err)
	}
	for _, want := range []string{"a      passed  1:01  0:30       3", "b      FAILED  0:00  0:00       2      TestB", "0:07  TestSlow", "=== FAILED in b\n--- FAIL: TestB (1.00s)\n    b_test.go:1: why\n", "idle for 25 %", "\n4 passed, 1 failed, 0 skipped\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table has no %q:\n%s", want, out.String())
		}
	}
	if err := printTable(&out, stages[:1], time.Minute, 0); err != nil {
		t.Errorf("the error of a table without a failed stage: %v", err)
	}
}

func TestIdleTimeIsReadFromTheLineOfAllProcessors(t *testing.T) {
	got, err := parseIdle("cpu  10 1 20 60 9 0 0 0 0 0\ncpu0 1 1 1 1 1\n")
	if err != nil || got != (processors{idle: 69, all: 100}) {
		t.Errorf("want 69 of 100, got %+v, error %v", got, err)
	}
	if _, err := parseIdle("intr 5\n"); err == nil {
		t.Error("a text without that line: want an error")
	}
}

func TestAFailedTestsOwnLinesAreKept(t *testing.T) {
	s := newStage("target", new(strings.Builder), false)
	fmt.Fprint(s.lines, "=== RUN   TestA\n=== PAUSE TestA\n=== RUN   TestB\n    b_test.go:1: of B\n=== RUN   TestB/part\n    b_test.go:2: of its part\n        more\nnoise\n"+
		"=== NAME  TestA\n    a_test.go:1: of A\n--- PASS: TestA (0.1s)\n=== CONT  TestB\n    b_test.go:3: the end\n--- FAIL: TestB (0.2s)\n    --- FAIL: TestB/part (0.2s)\n")
	fmt.Fprint(s.lines, "x-0: === RUN   TestC\nx-1: === RUN   TestD\nx-0:     c_test.go:1: of C\nx-0: --- FAIL: TestC (0.1s)\n")
	want := []string{
		"--- FAIL: TestB (0.2s)\n    b_test.go:1: of B\n    b_test.go:2: of its part\n        more\n    b_test.go:3: the end",
		"x-0: --- FAIL: TestC (0.1s)\nx-0:     c_test.go:1: of C",
	}
	if got := s.failures.found; !slices.Equal(got, want) {
		t.Errorf("want %q, got %q", want, got)
	}
}

// At its end, vmtest prints again what the failed tests printed, without the machines' names.
func TestWhatVmtestRepeatsAtItsEndIsKeptOnce(t *testing.T) {
	s := newStage("target", new(strings.Builder), false)
	fmt.Fprint(s.lines, "p-0: === RUN   TestA\np-0:     a_test.go:1: of A in p\np-0: --- FAIL: TestA (0.1s)\n"+
		"q-1: === RUN   TestA\nq-1:     a_test.go:1: of A in q\nq-1: --- FAIL: TestA (0.2s)\n"+
		"=== FAILED in p\n=== RUN   TestA\n    a_test.go:1: of A in p\n--- FAIL: TestA (0.1s)\n=== FAILED p: exit code 1\n"+
		"=== FAILED in q\n=== RUN   TestA\n    a_test.go:1: of A in q\n--- FAIL: TestA (0.2s)\n=== FAILED q: exit code 1\n"+
		"FAIL\tp\t0.1s\t(0 passed, 1 failed)\nFAIL\tq\t0.2s\t(0 passed, 1 failed)\n"+
		"=== RUN   TestB\n    b_test.go:1: of the command after it\n--- FAIL: TestB (0.3s)\nFAIL\tr\t0.3s\n")
	want := []string{
		"p-0: --- FAIL: TestA (0.1s)\np-0:     a_test.go:1: of A in p",
		"q-1: --- FAIL: TestA (0.2s)\nq-1:     a_test.go:1: of A in q",
		"--- FAIL: TestB (0.3s)\n    b_test.go:1: of the command after it",
	}
	if got := s.failures.found; !slices.Equal(got, want) {
		t.Errorf("want %q, got %q", want, got)
	}
	if got := s.tests; got.failed != 3 || len(got.times) != 3 {
		t.Errorf("want three failed tests and as many times, got %+v", got)
	}
}

func TestAFailureWithoutATestHasAName(t *testing.T) {
	for _, c := range []struct{ name, printed, want string }{
		{"a package that was not compiled", "FAIL\tp [build failed]\n", "p"},
		{"what TestMain found", "--- PASS: TestA (0.10s)\nPASS\nleft over\nFAIL\tp\t0.1s\n", "p"},
		{"a test that failed has one", "--- FAIL: TestA (0.10s)\nFAIL\nFAIL\tp\t0.1s\n", "TestA"},
		{"a machine's tests have theirs", "p: --- FAIL: TestA (0.10s)\nFAIL\tp\t0.1s\t(3 passed, 1 failed)\n", "TestA"},
		{"a test that did not end", "panic: test timed out after 15m0s\n", "(timeout)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage("target", new(strings.Builder), false)
			fmt.Fprint(s.lines, c.printed)
			if got := s.tests; got.failed != 1 || !slices.Equal(got.broken, []string{c.want}) {
				t.Errorf("want the one failure %s, got %d, %q", c.want, got.failed, got.broken)
			}
		})
	}
}

func TestTheLastLinesOfAStageThatFailsWithoutATestAreRepeated(t *testing.T) {
	root := t.TempDir()
	recipe := "lint:\n\t@for i in $$(seq 100); do echo line $$i; done; echo 'a.go:1: unused'; exit 1\n"
	if err := os.WriteFile(filepath.Join(root, "Makefile"), []byte(recipe), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newStage("lint", new(strings.Builder), false)
	s.run(t.Context(), root)
	if len(s.failures.found) != 1 {
		t.Fatalf("repeated are %q, want one", s.failures.found)
	}
	got := s.failures.found[0]
	if strings.Contains(got, "line 1\n") || !strings.Contains(got, "line 100\na.go:1: unused") {
		t.Errorf("repeated is\n%s\nwant the last lines", got)
	}
}

func TestAStageThatIsNamedGivesWayToTheOthers(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "Makefile"), []byte("target:\n\t@nice > niceness\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	niceness := func(nice bool) int {
		s := newStage("target", io.Discard, false)
		s.nice = nice
		s.run(t.Context(), root)
		printed, err := os.ReadFile(filepath.Join(root, "niceness"))
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(printed)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if usual, named := niceness(false), niceness(true); named <= usual && usual < 19 {
		t.Errorf("nice(1) says %d in a stage that is named and %d in others, want more in the first", named, usual)
	}
}

// Each target waits for a file that another one writes, so that what runs too early or too late ends
// the run.
func TestTheFirstTargetRunsBesideThoseThatGiveWayOnly(t *testing.T) {
	wait := func(file string) string { return "until [ -e " + file + " ]; do sleep 0.01; done; " }
	for _, c := range []struct {
		name, first string
		want        error
		// ran are the targets that ended, in any order.
		ran string
	}{
		{"it ends", wait("given-way") + "touch first", nil, "first given-way usual"},
		{"it fails", wait("given-way") + "exit 1", errFailed, "given-way"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			makefile := "first:\n\t@" + c.first + "\n" +
				"given-way:\n\t@[ ! -e first ] && touch given-way\n" +
				"usual:\n\t@[ -e first ] && touch usual\n"
			if err := os.WriteFile(filepath.Join(root, "Makefile"), []byte(makefile), 0o600); err != nil {
				t.Fatal(err)
			}
			o := options{targets: []string{"given-way", "usual"}, first: "first", nice: []string{"given-way"}, strict: true}
			var out strings.Builder
			if err := run(t.Context(), &out, root, o); !errors.Is(err, c.want) {
				t.Errorf("want %v, got %v\n%s", c.want, err, out.String())
			}
			var ran []string
			for _, target := range []string{"first", "given-way", "usual"} {
				if _, err := os.Stat(filepath.Join(root, target)); err == nil {
					ran = append(ran, target)
				}
			}
			if got := strings.Join(ran, " "); got != c.ran {
				t.Errorf("want %q to have ended, got %q\n%s", c.ran, got, out.String())
			}
		})
	}
}

func TestTargetsRunAtOnceUpToTheLimit(t *testing.T) {
	const sees = "for i in $$(seq 1000); do if [ -e %s ]; then exit; fi; sleep 0.01; done; exit 1"
	for _, c := range []struct {
		atOnce        int
		first, second string
	}{
		{1, "[ ! -e second ] && touch first", "[ -e first ] && touch second"},
		{2, "touch first; " + fmt.Sprintf(sees, "second"), "touch second; " + fmt.Sprintf(sees, "first")},
	} {
		root := t.TempDir()
		if err := os.WriteFile(filepath.Join(root, "Makefile"), []byte("a:\n\t@"+c.first+"\nb:\n\t@"+c.second+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := run(t.Context(), &out, root, options{targets: []string{"a", "b"}, atOnce: c.atOnce, strict: true}); err != nil {
			t.Errorf("%d at once: %v\n%s", c.atOnce, err, out.String())
		}
	}
}

// Each Makefile's target prints what its tests print, and something else in the second run.
func TestAFewFailedTestsAreRunOnceMore(t *testing.T) {
	const failed, passed = `echo "--- FAIL: TestA (0.10s)"; exit 1`, `echo "--- PASS: TestA (0.10s)"`
	for _, c := range []struct {
		name, first, second string
		// flaky are the tests that passed in the second run, ran how often make ran.
		flaky []string
		ran   int
	}{
		{"it passes then", failed, passed, []string{"TestA"}, 2},
		{"it fails again", failed, failed, nil, 2},
		{"it is not among those that run", failed, "true", nil, 2},
		{"another one fails then", failed, passed + `; echo "--- FAIL: TestB (0.10s)"; exit 1`, nil, 2},
		{"it had a data race", `echo "=== RUN   TestA"; echo "WARNING: DATA RACE"; ` + failed, passed, nil, 1},
		{"it left something behind", `echo "=== RUN   TestA"; echo "    left behind: mount /mnt"; ` + failed, passed, nil, 1},
		{"its course was drawn from a seed", `echo "=== RUN   TestA"; echo "    a_test.go:1: -args -seed 7 -rounds 3"; ` + failed, passed, nil, 1},
		{"it is a random history", `echo "=== RUN   TestA"; echo "    a_test.go:1: [rapid] failed after 3 tests"; ` + failed, passed, nil, 1},
		{"too many fail", `echo "--- FAIL: TestB (0.10s)"; echo "--- FAIL: TestC (0.10s)"; ` + failed, passed, nil, 1},
		{"a package is not compiled", "printf 'FAIL\\tp [build failed]\\n'; " + failed, passed, nil, 1},
		{"make fails without a test", "exit 1", passed, nil, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			recipe := "target:\n\t@echo run >> runs; if [ -z '$(RUN)' ]; then " + c.first + "; fi; if [ '$(RUN)' = '^(TestA)$$' ]; then " + c.second + "; fi\n"
			if err := os.WriteFile(filepath.Join(root, "Makefile"), []byte(recipe), 0o600); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			s, other := newStage("target", &out, false), newStage("other", &out, false)
			s.run(t.Context(), root)
			all := []*stage{other, s}
			rerunFailed(t.Context(), root, &out, all)
			ran, err := os.ReadFile(filepath.Join(root, "runs"))
			if err != nil {
				t.Fatal(err)
			}
			runs := strings.Count(string(ran), "run")
			if !slices.Equal(s.flaky, c.flaky) || (s.err == nil) != (c.flaky != nil) || runs != c.ran {
				t.Errorf("make ran %d times, flaky are %q, error %v; want %d times, %q\n%s", runs, s.flaky, s.err, c.ran, c.flaky, out.String())
			}
			if err := printTable(&out, all, time.Minute, 0); (err == nil) != (c.flaky != nil) {
				t.Errorf("the error of the table: %v", err)
			}
			if c.flaky != nil && !strings.Contains(out.String(), "flaky   0:00  0:00       1      TestA") {
				t.Errorf("the table does not name the flaky test:\n%s", out.String())
			}
		})
	}
}
