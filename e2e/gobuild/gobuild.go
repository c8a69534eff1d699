// Package gobuild builds the static Go programs that test clusters run: those of the
// nested modules, kept in the harness' cache because building them takes minutes, and
// Carve's own, for which Go's build cache is enough.
//
// Everything is built the same way: without cgo, without paths or the state of the
// version control in it, so that the same sources give the same bytes.
package gobuild

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/carve-csi/carve/e2e/cache"
)

// heartbeat is the time between two progress messages of a long build.
const heartbeat = 15 * time.Second

// Program is a main package.
type Program struct {
	// Name is the file name of the program.
	Name string
	// Dir is the folder of its module, or any folder in it.
	Dir string
	// Package is the path of the main package, relative to Dir; empty for Dir itself.
	Package string
	// Import is the import path of a main package that the module only names in its go.mod, in place of Package.
	Import string
	// Modfile is a file in Dir in the place of go.mod; empty for go.mod. Cached knows no other.
	Modfile string
	// Tags are build tags.
	Tags []string
	// Also are further main packages of the module, relative to Dir, that Cached builds too.
	// Each is named like its folder.
	Also []string
	// Variables are set by the linker: values by their full names.
	Variables map[string]string
	// Architecture is as Go calls it; empty for that of this machine. Cached knows no other.
	Architecture string
}

// Build builds the program into the file output.
func Build(ctx context.Context, p Program, output string) error {
	command := exec.CommandContext(ctx, "go", p.arguments(output)...)
	command.Dir = p.Dir
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if p.Architecture != "" {
		command.Env = append(command.Env, "GOOS=linux", "GOARCH="+p.Architecture)
	}
	var printed bytes.Buffer
	command.Stdout, command.Stderr = &printed, &printed
	if err := command.Run(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", p.Name, err, bytes.TrimSpace(printed.Bytes()))
	}
	return nil
}

// Cached returns the folder of the program in the harness' cache, built now if it is not
// there, with those that Also names beside it. The program must be a module by itself, with
// its sources in Dir, in the folders that Also names, and nowhere else: they, with the versions
// of all it is made of, and the toolchain are the key.
// Progress is written to progress, which may be nil. Several processes may ask at once: one
// builds, the others wait.
func Cached(ctx context.Context, p Program, progress io.Writer) (string, error) {
	key, err := p.key(ctx)
	if err != nil {
		return "", err
	}
	entry, err := cache.Entry(ctx, p.Name, key, func(ctx context.Context, dir string) error {
		stop := report(progress, p.Name)
		defer stop()
		for _, one := range p.all() {
			if err := Build(ctx, one, filepath.Join(dir, one.Name)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return entry, nil
}

// all are the program and those that are built with it.
func (p Program) all() []Program {
	all := []Program{p}
	for _, name := range p.Also {
		all = append(all, Program{Name: name, Dir: p.Dir, Package: name, Variables: p.Variables})
	}
	return all
}

// key digests everything that decides what the program is.
func (p Program) key(ctx context.Context) (string, error) {
	var files, arguments []string
	for _, one := range p.all() {
		sources, err := filepath.Glob(filepath.Join(one.Dir, one.Package, "*.go"))
		if err != nil {
			return "", fmt.Errorf("list the sources of %s: %w", one.Name, err)
		}
		files, arguments = append(files, sources...), append(arguments, one.arguments(one.Name)...)
	}
	files = slices.DeleteFunc(files, func(file string) bool { return strings.HasSuffix(file, "_test.go") })
	files = append(files, filepath.Join(p.Dir, "go.mod"), filepath.Join(p.Dir, "go.sum"))
	sources, err := cache.FileKey(files...)
	if err != nil {
		return "", err
	}
	command := exec.CommandContext(ctx, "go", "env", "GOVERSION")
	command.Dir = p.Dir
	toolchain, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("ask go for its version: %w", err)
	}
	return cache.Key(sources, string(toolchain), runtime.GOARCH, strings.Join(arguments, " ")), nil
}

func (p Program) arguments(output string) []string {
	flags := []string{"-s", "-w"}
	for name, value := range p.Variables {
		flags = append(flags, "-X "+name+"="+value)
	}
	slices.Sort(flags) // Maps have no order.
	main := "."
	switch {
	case p.Import != "":
		main = p.Import
	case p.Package != "":
		main = "./" + p.Package
	}
	all := []string{"build", "-trimpath", "-buildvcs=false", "-tags=" + strings.Join(p.Tags, ","), "-ldflags=" + strings.Join(flags, " "), "-o", output}
	if p.Modfile != "" {
		all = append(all, "-modfile="+p.Modfile)
	}
	return append(all, main)
}

// report writes to progress that a build goes on until the returned function is called.
func report(progress io.Writer, name string) (stop func()) {
	if progress == nil {
		return func() {}
	}
	fmt.Fprintf(progress, "building %s, once for these sources\n", name)
	start := time.Now()
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(heartbeat)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				fmt.Fprintf(progress, "building %s: %s\n", name, time.Since(start).Round(time.Second))
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}
