// Package ocitest makes images for tests.
package ocitest

import (
	"archive/tar"
	"bytes"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// source is of a program that has a module.
const source = "package main\n\nimport _ \"sigs.k8s.io/yaml\"\n\nfunc main() {}\n"

// build builds a small program and returns its path.
func build(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	main, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	if err := os.WriteFile(main, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, main).CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, output)
	}
	return program
}

// Modules lists the modules of the images' programs as "PATH@VERSION", as Go's own tool does.
func Modules(t testing.TB) []string {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), "go", "version", "-m", build(t)).Output()
	if err != nil {
		t.Fatal(err)
	}
	var modules []string
	for line := range strings.Lines(string(output)) {
		if words := strings.Fields(line); len(words) > 2 && words[0] == "dep" {
			modules = append(modules, words[1]+"@"+words[2])
		}
	}
	return modules
}

// file is one of a layer, or, with link, a symbolic link.
type file struct {
	name    string
	content []byte
	link    string
}

// Licence is the text of MIT's.
const Licence = `Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation
files (the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy, modify,
merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is furnished
to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF
MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE
FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION
WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
`

// Without returns an image without one of its files.
func Without(t testing.TB, image v1.Image, name string) v1.Image {
	t.Helper()
	image, err := mutate.AppendLayers(image, layer(t, file{name: path.Join(path.Dir(name), ".wh."+path.Base(name))}))
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// Write writes an image for an architecture as an archive as `docker save` does. It has a layer
// with Debian packages, and one with programs, two of which are Carve's and use the module
// sigs.k8s.io/yaml. The licence of one package is that of another, and all modules have MIT's.
func Write(t testing.TB, output, architecture string) {
	t.Helper()
	program, err := os.ReadFile(build(t))
	if err != nil {
		t.Fatal(err)
	}
	debian := func(name, version string) file {
		return file{name: "var/lib/dpkg/status.d/" + name, content: []byte("Package: " + name + "\nStatus: install ok installed\nVersion: " + version + "\nArchitecture: " + architecture + "\n")}
	}
	programs := []file{
		{name: "usr/local/bin/carve-lvmd", content: program}, {name: "usr/local/bin/carve-node", content: program},
		{name: "usr/local/bin/lvm", content: []byte("of " + architecture)},
		{name: "licenses/LICENSE", content: []byte(Licence)}, {name: "licenses/go/LICENSE", content: []byte(Licence)},
	}
	for _, module := range Modules(t) {
		programs = append(programs, file{name: "licenses/" + module + "/below/LICENSE", content: []byte(Licence)})
	}
	layers := []v1.Layer{
		layer(t, debian("lvm2", "2.03.16-2"), debian("libstdc++6", "12.2.0-14+deb12u1"), file{name: "usr/share/doc/lvm2/copyright"},
			file{name: "usr/share/doc/libstdc++6", link: "gcc-12-base"}, file{name: "usr/share/doc/gcc-12-base/copyright"}),
		layer(t, programs...),
	}
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: architecture, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Entrypoint: []string{"/usr/local/bin/carve-lvmd"}, Env: []string{"PATH=/usr/local/bin"}},
	})
	if err == nil {
		image, err = mutate.AppendLayers(image, layers...)
	}
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("registry.example.com/carve:v1")
	if err == nil {
		err = tarball.WriteToFile(output, tag, image)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func layer(t testing.TB, files ...file) v1.Layer {
	t.Helper()
	var content bytes.Buffer
	archive := tar.NewWriter(&content)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: 0o755, Size: int64(len(f.content)), Format: tar.FormatPAX}
		if f.link != "" {
			header.Typeflag, header.Linkname = tar.TypeSymlink, f.link
		}
		err := archive.WriteHeader(header)
		if err == nil {
			_, err = archive.Write(f.content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	return static.NewLayer(content.Bytes(), types.DockerUncompressedLayer)
}
