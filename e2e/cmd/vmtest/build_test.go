package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestOnlyTestsInFilesForARealKernelAreMeant(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"real_test.go":   "package p\nfunc TestMain(m *testing.M) {}\nfunc TestB(t *testing.T) {}\nfunc helper() {}\nfunc TestA(t *testing.T) {}\n",
		"outer_test.go":  "package p_test\nfunc TestC(t *testing.T) {}\n",
		"common_test.go": "package p\nfunc TestAnywhere(t *testing.T) {}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	packages := []testPackage{
		{ImportPath: "example.org/p", Dir: dir, TestGoFiles: []string{"common_test.go", "real_test.go"}, XTestGoFiles: []string{"outer_test.go"}},
		{ImportPath: "example.org/q", Dir: dir, TestGoFiles: []string{"common_test.go"}},
	}
	anywhere := []testPackage{
		{ImportPath: "example.org/p", Dir: dir, TestGoFiles: []string{"common_test.go"}},
		{ImportPath: "example.org/q", Dir: dir, TestGoFiles: []string{"common_test.go"}},
	}
	got, err := withKernelTests(packages, anywhere)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || !slices.Equal(got[0].tests, []string{"TestB", "TestA", "TestC"}) {
		t.Errorf("want example.org/p with TestB, TestA and TestC, got %+v", got)
	}
}

func TestEachTestIsAJobOfItsOwn(t *testing.T) {
	p := testPackage{ImportPath: "example.org/p", tests: []string{"TestA", "TestC"}}
	for _, c := range []struct {
		o    options
		want []string
	}{
		{options{}, []string{"-test.run=^TestA$", "-test.run=^TestC$"}},
		{options{run: "Test[AC]/part"}, []string{"-test.run=^TestA$/part", "-test.run=^TestC$/part"}},
	} {
		var got []string
		for _, j := range c.o.jobs(p) {
			got = append(got, j.arguments[0])
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("jobs with -run %q: want %q, got %q", c.o.run, c.want, got)
		}
	}
	jobs := options{bench: "."}.jobs(testPackage{})
	if len(jobs) != 1 || !slices.Contains(jobs[0].arguments, "-test.bench=.") || !slices.Contains(jobs[0].arguments, "-test.run=^$") {
		t.Errorf("jobs with -bench: want one without tests, got %+v", jobs)
	}
}
