package sbom

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestCarveIsNoModuleOfItsOwnPrograms builds a program as carve-scheduler is built: its module requires Carve's, which
// it takes from the source tree. The release's version is listed as Carve's, not the required one.
func TestCarveIsNoModuleOfItsOwnPrograms(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"go.mod":         "module " + carve + "/plugin\n\ngo 1.26.0\n\nrequire " + carve + " v0.0.1\n\nreplace " + carve + " => ./carve\n",
		"main.go":        "package main\n\nimport _ \"" + carve + "\"\n\nfunc main() {}\n",
		"carve/go.mod":   "module " + carve + "\n\ngo 1.26.0\n",
		"carve/carve.go": "package carve\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "program")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Dir = dir
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, output)
	}
	file, err := os.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	found, err := modules(file)
	if err != nil || len(found) != 1 || found[0].Name != "go" {
		t.Errorf("components: got %+v, %v, want Go's library only", found, err)
	}
}
