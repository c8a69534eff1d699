package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestFailuresAreListedAtTheEndWithWhatWasPrintedBefore(t *testing.T) {
	var f failures
	for _, part := range []string{
		"=== RUN   TestGood\n    a_test.go:1: fine\n--- PASS: TestGood (0.1s)\n",
		"=== RUN   TestBad\n=== RUN   TestBad/part\n    b_test.go:7: got 1, ", "want 2\n",
		"--- FAIL: TestBad (0.2s)\n    --- FAIL: TestBad/part (0.1s)\n=== RUN   TestLast\n--- PASS: TestLast (0.1s)\nFAIL\n",
	} {
		if _, err := f.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	f.report(&out, "example.com/p", []string{"exit code 1"})
	want := `=== FAILED in example.com/p
=== RUN   TestBad
=== RUN   TestBad/part
    b_test.go:7: got 1, want 2
--- FAIL: TestBad (0.2s)
=== FAILED in example.com/p
    --- FAIL: TestBad/part (0.1s)
=== FAILED example.com/p: exit code 1
`
	if got := out.String(); got != want {
		t.Errorf("the report is\n%swant\n%s", got, want)
	}
}

func TestATestThatGoTestSaysFailedHasFailed(t *testing.T) {
	f := new(failures)
	fmt.Fprint(f, "=== RUN   TestA\n    a_test.go:1: why\n--- FAIL: TestA (0.10s)\n=== RUN   TestAB\n")
	if !f.has("TestA") || f.has("TestAB") {
		t.Errorf("TestA, which failed: %t; TestAB, which did not end: %t", f.has("TestA"), f.has("TestAB"))
	}
}
