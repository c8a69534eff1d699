package earlier

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The repository is one of its own: a checkout on which tests run may have no history.
func TestATreeIsThatOfItsCommit(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	root := t.TempDir()
	inRoot := func(arguments ...string) string {
		t.Helper()
		command := exec.CommandContext(t.Context(), "git", arguments...)
		command.Dir = root
		output, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v: %s", arguments, err, output)
		}
		return strings.TrimSpace(string(output))
	}
	commit := func(file string) string {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, file), []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		inRoot("add", file)
		inRoot("-c", "user.name=test", "-c", "user.email=test@example.com", "commit", "--quiet", "--message", "add "+file)
		return inRoot("rev-parse", "HEAD")
	}
	inRoot("init", "--quiet")
	first := commit("first")
	commit("second")
	tree, err := treeOf(t.Context(), root, first)
	if err != nil {
		t.Fatal(err)
	}
	for file, is := range map[string]bool{"first": true, "second": false} {
		if _, err := os.Stat(filepath.Join(tree, file)); (err == nil) != is {
			t.Errorf("%s of the first commit: %v", file, err)
		}
	}
	inRoot("checkout", "--quiet", "-b", "beside", first)
	beside := commit("third")
	inRoot("checkout", "--quiet", "-")
	for name, missing := range map[string]string{"not there": strings.Repeat("0", 40), "not in the history": beside} {
		if _, err = treeOf(t.Context(), root, missing); err == nil || !strings.Contains(err.Error(), "git fetch --unshallow") {
			t.Errorf("a commit that is %s: error %v", name, err)
		}
	}
}
