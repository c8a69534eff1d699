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
		"go.mod":       "module example.com/hello\n\ngo 1.26.0\n",
		"go.sum":       "",
		"main.go":      "package main\n\nvar word = \"unset\"\n\nfunc main() { println(word) }\n",
		"more/main.go": "package main\n\nfunc main() { println(\"more\") }\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Program{Name: "hello", Dir: dir, Also: []string{"more"}, Variables: map[string]string{"main.word": "set"}}
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
	for program, want := range map[string]string{"hello": "set\n", "more": "more\n"} {
		if output, err := exec.Command(filepath.Join(first, program)).CombinedOutput(); err != nil || string(output) != want {
			t.Errorf("program %s prints %q, %v; want %q", program, output, err, want)
		}
	}
	if progress.Len() == 0 {
		t.Error("nothing was reported about the build")
	}

	progress.Reset()
	if second, err := Cached(t.Context(), p, &progress); err != nil || second != first {
		t.Errorf("built again: %s, then %s, %v", first, second, err)
	}
	if progress.Len() > 0 {
		t.Errorf("a build was reported that was not: %q", progress.String())
	}

	if err := os.WriteFile(filepath.Join(p.Dir, "more", "main.go"), []byte("package main\n\nfunc main() {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	third, err := Cached(t.Context(), p, nil)
	if err != nil || third == first {
		t.Errorf("another program beside it came from the same entry %s, %v", third, err)
	}
	p.Variables["main.word"] = "other"
	if fourth, err := Cached(t.Context(), p, nil); err != nil || fourth == third {
		t.Errorf("another program came from the same entry %s, %v", fourth, err)
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
