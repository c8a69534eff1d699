package version

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/carve-csi/carve/release/chart"
	"github.com/carve-csi/carve/release/manifests"
)

const root = "../.."

// TestThereIsOneVersion compares the changelog with the chart, the image that kustomize and
// the chart install, and the documents.
func TestThereIsOneVersion(t *testing.T) {
	want, err := Read(root)
	if err != nil {
		t.Fatal(err)
	}
	c, err := chart.Load(filepath.Join(root, chart.Dir))
	if err != nil {
		t.Fatal(err)
	}
	if c.Metadata.AppVersion != want || "v"+c.Metadata.Version != want {
		t.Errorf("the chart: want %s, got version %s and appVersion %s", want, c.Metadata.Version, c.Metadata.AppVersion)
	}
	installed, err := manifests.Build(filepath.Join(root, "deploy/base"))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"kustomize's objects": string(installed)}
	documents, err := filepath.Glob(filepath.Join(root, "docs/*/*.md"))
	if err != nil || len(documents) == 0 {
		t.Fatalf("documents: got %d, %v", len(documents), err)
	}
	for _, name := range []string{"README.md", "deploy/image/Dockerfile", "deploy/components/scheduler/kustomization.yaml"} {
		documents = append(documents, filepath.Join(root, name))
	}
	modules, err := filepath.Glob(filepath.Join(root, "pkg/scheduler/plugin/go*.mod"))
	if err != nil || len(modules) == 0 {
		t.Fatalf("modules of the scheduler: got %d, %v", len(modules), err)
	}
	documents = append(documents, modules...)
	for _, name := range documents {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(text)
	}
	for name, text := range files {
		found := named.FindAllStringSubmatch(text, -1)
		if name == "kustomize's objects" && len(found) != 3 || name == filepath.Join(root, "docs/get-started/install.md") && len(found) < 5 || strings.HasSuffix(name, ".mod") && len(found) != 1 {
			t.Errorf("%s: versions are missing in %q", name, found)
		}
		for _, match := range found {
			if got := strings.Join(match[1:], ""); got != want {
				t.Errorf("%s: want the version %s, got %q", name, want, match[0])
			}
		}
	}
}

// named is where the version is in what users type and apply: images in registries, their archives,
// an image's tag for kustomize, an argument of Docker's, what kustomize reads from Git, and the module that the
// scheduler's plugin requires.
var named = regexp.MustCompile(`registry\.[\w./-]+carve:([\w.+-]*\w)|carve-image-(v\S+?)-linux|/carve\n +newTag: (\S+)|carve-scheduler(?::|\n +newTag: |, newTag: )(v\S+)-k8s|VERSION=(v\S+)|\?ref=(\S+)|carve-csi/carve (v\S+)`)

// TestMinorsAreThoseOfTheSchedulerModules compares them with the names of the modules' files, which choose what is built.
func TestMinorsAreThoseOfTheSchedulerModules(t *testing.T) {
	minors, err := Minors(root)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, minor := range minors[:len(minors)-1] {
		files = append(files, filepath.Join(root, "pkg/scheduler/plugin/go-"+minor+".mod"))
	}
	want, err := filepath.Glob(filepath.Join(root, "pkg/scheduler/plugin/go-*.mod"))
	if err != nil || !slices.Equal(files, want) {
		t.Errorf("modules of older versions: got %q, want %q (%v)", files, want, err)
	}
	if newest := minors[len(minors)-1]; slices.Contains(minors[:len(minors)-1], newest) {
		t.Errorf("go.mod is of %s, as is another file", newest)
	}
}

// TestEveryProgramSaysItsVersion builds each with the version, as a release does, and asks it.
func TestEveryProgramSaysItsVersion(t *testing.T) {
	want, err := Read(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lvmd", "node", "controller", "kubectl-carve"} {
		program := filepath.Join(t.TempDir(), name)
		build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w -X main.version="+want, "-o", program, "./cmd/"+name)
		build.Dir = root
		if output, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, output)
		}
		output, err := exec.CommandContext(t.Context(), program, "--version").CombinedOutput()
		if err != nil || !strings.HasSuffix(strings.TrimSpace(string(output)), " "+want) {
			t.Errorf("%s --version: want %s, got %q, %v", name, want, output, err)
		}
	}
}

func TestAChangelogWithoutAVersionIsAnError(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "CHANGELOG.md"), []byte("# Changelog\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); !errors.Is(err, ErrNone) {
		t.Errorf("want %v, got %v", ErrNone, err)
	}
}
