package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// tag is the build tag of tests that need a real kernel.
const tag = "kernel"

// testPackage is a package with tests.
type testPackage struct {
	ImportPath   string
	Dir          string
	TestGoFiles  []string
	XTestGoFiles []string
	// binary is the name of its compiled tests in the build folder.
	binary string
	// tests are the tests to run.
	tests []string
}

// list resolves patterns, which are relative to the working directory, to
// packages of the main module at root.
func list(ctx context.Context, root string, patterns []string, tags string) ([]testPackage, error) {
	args := []string{"list", "-tags", tags, "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles"}
	for _, pattern := range patterns {
		absolute, err := filepath.Abs(pattern)
		if err != nil {
			return nil, err
		}
		args = append(args, absolute)
	}
	command := exec.CommandContext(ctx, "go", args...)
	command.Dir = root
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages: %w\n%s", err, stderr.String())
	}
	var packages []testPackage
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var p testPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("list the packages: %w", err)
		}
		p.binary = strings.ReplaceAll(strings.TrimPrefix(p.Dir, root+"/"), "/", "_") + ".test"
		packages = append(packages, p)
	}
}

// files are the package's test files.
func (p testPackage) files() []string { return slices.Concat(p.TestGoFiles, p.XTestGoFiles) }

// withKernelTests returns the packages that have test files for such a machine only, each
// with the tests in these files. All other tests run anywhere, and `make test-race` runs
// them where a process costs a twentieth of what it costs here.
func withKernelTests(packages, anywhere []testPackage) ([]testPackage, error) {
	var found []testPackage
	for _, p := range packages {
		elsewhere := slices.IndexFunc(anywhere, func(a testPackage) bool { return a.ImportPath == p.ImportPath })
		for _, file := range p.files() {
			if elsewhere >= 0 && slices.Contains(anywhere[elsewhere].files(), file) {
				continue
			}
			tests, err := testsIn(filepath.Join(p.Dir, file))
			if err != nil {
				return nil, err
			}
			p.tests = append(p.tests, tests...)
		}
		if len(p.tests) > 0 {
			found = append(found, p)
		}
	}
	return found, nil
}

// testsIn returns the names of the tests that a file declares, in its order.
func testsIn(file string) ([]string, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("find the tests of %s: %w", file, err)
	}
	var tests []string
	for _, declaration := range parsed.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if ok && function.Recv == nil && strings.HasPrefix(function.Name.Name, "Test") && function.Name.Name != "TestMain" {
			tests = append(tests, function.Name.Name)
		}
	}
	return tests, nil
}

// chosen returns the package's tests that a -run expression means, as the compiled
// tests themselves say.
func chosen(ctx context.Context, p testPackage, build, run string) ([]string, error) {
	// Only the part before the first slash is about tests, the rest is about their parts.
	top, _, _ := strings.Cut(run, "/")
	command := exec.CommandContext(ctx, filepath.Join(build, p.binary), "-test.list="+top)
	command.Dir = p.Dir
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("list the tests of %s: %w", p.ImportPath, err)
	}
	return slices.DeleteFunc(strings.Fields(string(output)), func(name string) bool { return !strings.HasPrefix(name, "Test") }), nil
}

// compileTests compiles a package's tests into the folder out.
func compileTests(ctx context.Context, root, out string, p testPackage, tags string, race bool) error {
	args := []string{"test", "-c", "-trimpath", "-tags", tags, "-o", filepath.Join(out, p.binary)}
	if race {
		args = append(args, "-race")
	}
	return goTool(ctx, root, race, append(args, p.ImportPath)...)
}

// compileCommand compiles ./cmd/NAME as carve-NAME into the folder out.
func compileCommand(ctx context.Context, root, out, name string, race bool) error {
	args := []string{"build", "-trimpath", "-o", filepath.Join(out, "carve-"+name)}
	if race {
		args = append(args, "-race")
	}
	return goTool(ctx, root, race, append(args, "./cmd/"+name)...)
}

// goTool runs the go command; what it says goes to stderr, as it comes. Binaries
// are static, but for the race detector, which needs C.
func goTool(ctx context.Context, root string, race bool, args ...string) error {
	command := exec.CommandContext(ctx, "go", args...)
	command.Dir = root
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if race {
		command.Env = append(os.Environ(), "CGO_ENABLED=1")
	}
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	started := time.Now()
	if err := command.Run(); err != nil {
		return fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	if took := time.Since(started); took > 5*time.Second {
		fmt.Fprintf(os.Stderr, "vmtest: built %s in %.0f s\n", args[len(args)-1], took.Seconds())
	}
	return nil
}
