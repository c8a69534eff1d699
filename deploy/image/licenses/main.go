// Command licenses copies the licences of what programs are linked of into a folder: Carve's, Go's and
// those of the modules. They go wherever the programs go. The Dockerfile, `make image` and
// `make release` run it from other modules and from none, so it imports only Go's own packages.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

func main() {
	platform := flag.String("os", runtime.GOOS, "operating system of the programs")
	architecture := flag.String("arch", runtime.GOARCH, "architecture of the programs")
	modfile := flag.String("modfile", "", "file in the place of go.mod")
	flag.Parse()
	if flag.NArg() < 2 {
		fmt.Fprintln(os.Stderr, "usage: licenses [-os OS] [-arch ARCH] [-modfile FILE] FOLDER PACKAGE...")
		os.Exit(2)
	}
	packages, err := list(".", *modfile, *platform, *architecture, flag.Args()[1:])
	var ofGo string
	if err == nil {
		ofGo, err = findGo()
	}
	if err == nil {
		err = copyAll(packages, ofGo, flag.Arg(0))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "licenses:", err)
		os.Exit(1)
	}
}

// linked is a package that is linked into a program. Go's own have no module.
type linked struct {
	Dir    string
	Module *struct {
		Path, Version, Dir string
		Main               bool
		Replace            *struct{ Path, Version string }
	}
}

// list returns the packages that programs, named relative to the folder dir, are linked of.
func list(dir, modfile, platform, architecture string, programs []string) ([]linked, error) {
	output, err := run(dir, "CGO_ENABLED=0 GOOS="+platform+" GOARCH="+architecture,
		append([]string{"list", "-modfile=" + modfile, "-deps", "-json=Dir,Module"}, programs...)...)
	if err != nil {
		return nil, err
	}
	var packages []linked
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var p linked
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("list the packages of %q: %w", programs, err)
		}
		packages = append(packages, p)
	}
}

// findGo returns the folder that has Go's licence.
func findGo() (string, error) {
	output, err := run(".", "", "env", "GOROOT")
	return licenceOf(string(bytes.TrimSpace(output))), err
}

// licenceOf returns the folder with the licence of the Go in a folder. Distributions pack Go without
// it, but with the modules that it has copied, which have the same authors and text.
func licenceOf(goroot string) string {
	if _, err := os.Stat(filepath.Join(goroot, "LICENSE")); err != nil {
		return filepath.Join(goroot, "src/vendor/golang.org/x/net")
	}
	return goroot
}

// run runs go in a folder and returns what it prints.
func run(dir, variables string, arguments ...string) ([]byte, error) {
	command := exec.Command("go", arguments...)
	command.Dir = dir
	command.Env = append(append(os.Environ(), "GOWORK=off"), strings.Fields(variables)...)
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("go %q: %w", arguments, err)
	}
	return output, nil
}

// name is the folder of a package's licences. Those of Carve's modules, which have folders of the source tree for
// versions, lie beside the others.
func (p linked) name() string {
	switch m := p.Module; {
	case m == nil:
		return "go"
	case m.Main, m.Replace != nil && m.Replace.Version == "":
		return "."
	case m.Replace != nil:
		return m.Replace.Path + "@" + m.Replace.Version
	default:
		return m.Path + "@" + m.Version
	}
}

// A licence is to be passed on, and what it asks for: the NOTICE of Apache's, PATENTS of Go's.
var (
	licence = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying|copyright)`)
	further = regexp.MustCompile(`(?i)^(notice|patents)`)
)

// source matches files that only have such a name.
var source = regexp.MustCompile(`\.(go|s|sh|yaml|json|tmpl)$`)

// errNoLicence is the error of a module without a licence.
var errNoLicence = errors.New("no file has its licence")

// copyAll copies the licences of packages into a folder. A package that was copied from elsewhere often
// has a licence of its own, so it looks beside each and above it, up to the folder of its module. All
// of Go's packages have the licence in the folder ofGo.
func copyAll(packages []linked, ofGo, folder string) error {
	seen, licensed := map[string]bool{}, map[string]bool{}
	for _, p := range packages {
		name, dir, root := p.name(), ofGo, ofGo
		if p.Module != nil {
			dir, root = p.Dir, p.Module.Dir
		}
		for ; !seen[dir]; dir = filepath.Dir(dir) {
			seen[dir] = true
			below, err := filepath.Rel(root, dir)
			if err != nil || !filepath.IsLocal(below) {
				return fmt.Errorf("the package in %s is not one of %s", p.Dir, name)
			}
			copied, err := copyFolder(dir, filepath.Join(folder, name, below))
			if err != nil {
				return err
			}
			licensed[name] = licensed[name] || copied
			if below == "." {
				break
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(licensed)) {
		if !licensed[name] {
			return fmt.Errorf("%s: %w", name, errNoLicence)
		}
	}
	return nil
}

// copyFolder copies the licences in one folder, and reports whether there is one.
func copyFolder(from, to string) (licensed bool, err error) {
	entries, err := os.ReadDir(from)
	if err != nil {
		return false, fmt.Errorf("look for licences: %w", err)
	}
	for _, entry := range entries {
		name := entry.Name()
		isLicence := licence.MatchString(name)
		if !entry.Type().IsRegular() || source.MatchString(name) || !isLicence && !further.MatchString(name) {
			continue
		}
		licensed = licensed || isLicence
		if err := copyFile(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return false, err
		}
	}
	return licensed, nil
}

func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("copy a licence: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return fmt.Errorf("copy a licence: %w", err)
	}
	if err := os.WriteFile(to, content, 0o644); err != nil {
		return fmt.Errorf("copy a licence: %w", err)
	}
	return nil
}
