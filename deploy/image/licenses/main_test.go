package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// write writes files, each with its own path as its text, and returns their folder.
func write(t *testing.T, names ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, name := range names {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// files lists the files below a folder.
func files(t *testing.T, root string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			found = append(found, strings.TrimPrefix(path, root+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// of returns the package in a folder of a module.
func of(path, dir, below string, main bool) (p linked) {
	p.Dir = filepath.Join(dir, below)
	p.Module = &struct {
		Path, Version, Dir string
		Main               bool
		Replace            *struct{ Path, Version string }
	}{Path: path, Version: "v1.2.3", Dir: dir, Main: main}
	return p
}

// replaced is of for a module that another one replaces, in a version, or, without one, in a folder.
func replaced(dir, by, version string) linked {
	p := of("example.com/replaced", dir, ".", false)
	p.Module.Replace = &struct{ Path, Version string }{by, version}
	return p
}

func TestLicencesOfAllThatIsLinkedAreCopied(t *testing.T) {
	goroot := write(t, "LICENSE", "PATENTS", "src/fmt/print.go", "src/crypto/LICENSE")
	own := write(t, "LICENSE", "cmd/one/main.go")
	module := write(t, "COPYING.txt", "NOTICE", "README.md", "license.go",
		"used/third_party/LICENCE", "used/third_party/copied/copied.go", "unused/LICENSE", "used/third_party/copied/licenses/ignored")
	output := filepath.Join(t.TempDir(), "licenses")
	packages := []linked{
		{Dir: filepath.Join(goroot, "src/fmt")}, of("example.com/own", own, "cmd/one", true),
		of("example.com/a", module, ".", false), of("example.com/a", module, "used/third_party/copied", false),
	}
	if err := copyAll(packages, goroot, output); err != nil {
		t.Fatal(err)
	}
	want := []string{"LICENSE", "example.com/a@v1.2.3/COPYING.txt", "example.com/a@v1.2.3/NOTICE", "example.com/a@v1.2.3/used/third_party/LICENCE", "go/LICENSE", "go/PATENTS"}
	if got := files(t, output); !slices.Equal(got, want) {
		t.Errorf("licences: want %q, got %q", want, got)
	}
	if text, err := os.ReadFile(filepath.Join(output, want[3])); err != nil || string(text) != "used/third_party/LICENCE" {
		t.Errorf("%s: got %q, %v", want[3], text, err)
	}
}

// TestReplacedModuleLicencesAreCopied is laid out as carve-scheduler's module, which has its licence from Carve's.
func TestReplacedModuleLicencesAreCopied(t *testing.T) {
	carve := write(t, "LICENSE", "plugin/main.go")
	packages := []linked{
		of("example.com/carve/plugin", carve, "plugin", true), replaced(carve, "..", ""), replaced(write(t, "COPYING"), "example.com/fork", "v4.5.6"),
	}
	packages[0].Module.Dir = packages[0].Dir
	output := t.TempDir()
	if err := copyAll(packages, write(t, "LICENSE"), output); err != nil {
		t.Fatal(err)
	}
	if got, want := files(t, output), []string{"LICENSE", "example.com/fork@v4.5.6/COPYING"}; !slices.Equal(got, want) {
		t.Errorf("licences: got %q, want %q", got, want)
	}
}

// TestGoOfADistributionHasALicence is laid out as Debian's, where src is a link to a folder elsewhere.
func TestGoOfADistributionHasALicence(t *testing.T) {
	const copied = "vendor/golang.org/x/net"
	goroot, sources, output := write(t, "VERSION"), write(t, copied+"/LICENSE", copied+"/PATENTS", "fmt/print.go"), t.TempDir()
	if err := os.Symlink(sources, filepath.Join(goroot, "src")); err != nil {
		t.Fatal(err)
	}
	if err := copyAll([]linked{{Dir: filepath.Join(goroot, "src/fmt")}}, licenceOf(goroot), output); err != nil {
		t.Fatal(err)
	}
	if got, want := files(t, output), []string{"go/LICENSE", "go/PATENTS"}; !slices.Equal(got, want) {
		t.Errorf("Go's licence: want %q, got %q", want, got)
	}
	if err := os.WriteFile(filepath.Join(goroot, "LICENSE"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := licenceOf(goroot); got != goroot {
		t.Errorf("of a Go with a licence: got %s", got)
	}
}

func TestAModuleWithoutALicenceIsAnError(t *testing.T) {
	goroot := write(t, "LICENSE")
	module := write(t, "README.md", "NOTICE", "licenses/MIT", "license.go", "below/LICENSE")
	err := copyAll([]linked{of("example.com/a", module, ".", false)}, goroot, t.TempDir())
	if !errors.Is(err, errNoLicence) || !strings.Contains(err.Error(), "example.com/a@v1.2.3") {
		t.Errorf("got %v", err)
	}
}

// TestTheLicencesOfCarvesProgramsAreFound looks for those of every program and platform of a release.
func TestTheLicencesOfCarvesProgramsAreFound(t *testing.T) {
	const root = "../../.."
	ofGo, err := findGo()
	if err != nil {
		t.Fatal(err)
	}
	type release struct {
		dir, modfile, platform, architecture string
		programs                             []string
	}
	image := []string{"./cmd/lvmd", "./cmd/node", "./cmd/controller"}
	tests := []release{
		{root, "", "linux", "amd64", image}, {root, "", "linux", "arm64", image},
		{root, "", "darwin", "arm64", []string{"./cmd/kubectl-carve"}},
	}
	scheduler := filepath.Join(root, "pkg/scheduler/plugin")
	modfiles, err := filepath.Glob(filepath.Join(scheduler, "go*.mod"))
	if err != nil || len(modfiles) == 0 {
		t.Fatalf("modules of the scheduler: got %q, %v", modfiles, err)
	}
	for _, modfile := range modfiles {
		tests = append(tests, release{scheduler, filepath.Base(modfile), "linux", "arm64", []string{"./carve-scheduler"}})
	}
	for _, test := range tests {
		packages, err := list(test.dir, test.modfile, test.platform, test.architecture, test.programs)
		if err != nil {
			t.Fatal(err)
		}
		output := t.TempDir()
		if err := copyAll(packages, ofGo, output); err != nil {
			t.Errorf("%+v: %v", test, err)
			continue
		}
		own, err := os.ReadFile(filepath.Join(root, "LICENSE"))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(output, "LICENSE")); err != nil || !bytes.Equal(got, own) {
			t.Errorf("%+v: Carve's licence: got %q, %v", test, got, err)
		}
		if count := len(files(t, output)); count < 50 {
			t.Errorf("%+v: got %d files, want 50 or more", test, count)
		}
	}
}
