package main

import (
	"slices"
	"testing"
)

func TestPartsHaveEveryTestOnce(t *testing.T) {
	p := testPackage{ImportPath: "example.org/p"}
	tests := []string{"TestA", "TestB", "TestC", "TestD", "TestE"}
	for parts, want := range map[int][]string{
		1: {"example.org/p"},
		2: {"example.org/p (part 1 of 2)", "example.org/p (part 2 of 2)"},
		9: {"example.org/p (part 1 of 5)", "example.org/p (part 2 of 5)", "example.org/p (part 3 of 5)", "example.org/p (part 4 of 5)", "example.org/p (part 5 of 5)"},
	} {
		var titles, all []string
		for _, part := range share(p, tests, parts) {
			titles = append(titles, part.title())
			all = append(all, part.tests...)
		}
		if !slices.Equal(titles, want) {
			t.Errorf("%d parts: got %q, want %q", parts, titles, want)
		}
		slices.Sort(all)
		if parts > 1 && !slices.Equal(all, tests) {
			t.Errorf("%d parts have the tests %q, want %q", parts, all, tests)
		}
	}
	if parts := share(p, nil, 2); len(parts) != 1 || parts[0].tests != nil {
		t.Errorf("a package of benchmarks alone has the parts %v, want itself", parts)
	}
	if got, want := (options{}).testArguments([]string{"TestA", "TestC"}), "-test.run=^(TestA|TestC)$"; !slices.Contains(got, want) {
		t.Errorf("the arguments of a part are %q, want %s among them", got, want)
	}
}
