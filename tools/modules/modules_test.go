package modules_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// A package is compiled, and analysed by the linter, once for each version of it and of all that it
// imports: one difference far below doubles the time for Kubernetes' libraries.
func TestTheModulesUseTheSameVersions(t *testing.T) {
	files := []string{"../../go.mod", "../../pkg/scheduler/plugin/go.mod"}
	nested, err := filepath.Glob("../../*/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, nested...)
	if len(files) < 6 {
		t.Fatalf("found %q, want the root's module and those below", files)
	}
	type use struct{ version, file string }
	newest := map[string]use{}
	uses := map[string][]use{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		module, err := modfile.Parse(file, content, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range module.Require {
			u := use{r.Mod.Version, file}
			uses[r.Mod.Path] = append(uses[r.Mod.Path], u)
			if semver.Compare(u.version, newest[r.Mod.Path].version) > 0 {
				newest[r.Mod.Path] = u
			}
		}
	}
	for path, all := range uses {
		for _, u := range all {
			if want := newest[path]; u.version != want.version {
				t.Errorf("%s uses %s %s, want %s as in %s: go get %s@%s", u.file, path, u.version, want.version, want.file, path, want.version)
			}
		}
	}
}
