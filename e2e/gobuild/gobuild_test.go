package gobuild

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// module makes a module with one program that prints a variable.
func module(t *testing.T) Program {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"go.mod":  "module example.com/hello\n\ngo 1.26.0\n",
		"go.sum":  "",
		"main.go": "package main\n\nvar word = \"unset\"\n\nfunc main() { println(word) }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Program{Name: "hello", Dir: dir, Variables: map[string]string{"main.word": "set"}}
}

func TestTheSameProgramIsBuiltOnceAndAnotherAnew(t *testing.T) {
	gocache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOCACHE", strings.TrimSpace(string(gocache)))
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	p := module(t)

	var progress strings.Builder
	first, err := Cached(t.Context(), p, &progress)
	if err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command(first).CombinedOutput(); err != nil || string(output) != "set\n" {
		t.Errorf("the program prints %q, %v; want %q", output, err, "set\n")
	}
	if progress.Len() == 0 {
		t.Error("nothing was told about the build")
	}

	progress.Reset()
	if second, err := Cached(t.Context(), p, &progress); err != nil || second != first {
		t.Errorf("built again: %s, then %s, %v", first, second, err)
	}
	if progress.Len() > 0 {
		t.Errorf("a build was told of that was not: %q", progress.String())
	}

	p.Variables["main.word"] = "other"
	if third, err := Cached(t.Context(), p, nil); err != nil || third == first {
		t.Errorf("another program came from the same entry %s, %v", third, err)
	}
}

func TestWhatTheCompilerSaysIsInTheError(t *testing.T) {
	p := module(t)
	if err := os.WriteFile(filepath.Join(p.Dir, "main.go"), []byte("package main\n\nfunc main() { nonsense() }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	err := Build(t.Context(), p, filepath.Join(t.TempDir(), "hello"))
	if err == nil || !strings.Contains(err.Error(), "undefined: nonsense") {
		t.Errorf("want the compiler's words, got %v", err)
	}
}
