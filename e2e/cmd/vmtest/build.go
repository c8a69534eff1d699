package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
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
	// tests are the names of those that are meant, where the package's tests are
	// shared among several runs; part says which of them this is.
	tests []string
	part  string
}

// title is what the package's run is called.
func (p testPackage) title() string {
	if p.part == "" {
		return p.ImportPath
	}
	return p.ImportPath + " " + p.part
}

// list resolves patterns, which are relative to the working directory, to
// packages of the main module at root.
func list(ctx context.Context, root string, patterns []string) ([]testPackage, error) {
	args := []string{"list", "-tags", tag, "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles"}
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

// hasTests says whether there is something to compile.
func (p testPackage) hasTests() bool { return len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 }

// split shares a package's tests among so many runs: those that stand beside each
// other, and often take as long as each other, go to different ones.
func split(ctx context.Context, p testPackage, build string, parts int) ([]testPackage, error) {
	if parts == 1 {
		return []testPackage{p}, nil
	}
	command := exec.CommandContext(ctx, filepath.Join(build, p.binary), "-test.list=^Test")
	command.Dir = p.Dir
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("list the tests of %s: %w", p.ImportPath, err)
	}
	return share(p, strings.Fields(string(output)), parts), nil
}

func share(p testPackage, tests []string, parts int) []testPackage {
	if parts = min(parts, len(tests)); parts < 2 {
		return []testPackage{p}
	}
	shared := make([]testPackage, parts)
	for i := range shared {
		shared[i] = p
		shared[i].part = fmt.Sprintf("(part %d of %d)", i+1, parts)
	}
	for i, test := range tests {
		one := &shared[i%parts]
		one.tests = append(one.tests, test)
	}
	return shared
}

// compileTests compiles a package's tests into the folder out.
func compileTests(ctx context.Context, root, out string, p testPackage, race bool) error {
	args := []string{"test", "-c", "-tags", tag, "-o", filepath.Join(out, p.binary)}
	if race {
		args = append(args, "-race")
	}
	return goTool(ctx, root, race, append(args, p.ImportPath)...)
}

// compileCommand compiles ./cmd/NAME as carve-NAME into the folder out.
func compileCommand(ctx context.Context, root, out, name string, race bool) error {
	args := []string{"build", "-o", filepath.Join(out, "carve-"+name)}
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
