package earlier

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carve-csi/carve/e2e/checkout"
)

// TestTheEarlierVersionIsInTheHistory looks at what only the soak uses: a history that was written again has
// other commits, and a clone of it does not have this one.
func TestTheEarlierVersionIsInTheHistory(t *testing.T) {
	root, err := checkout.Root()
	if err != nil {
		t.Fatal(err)
	}
	repository := exec.CommandContext(t.Context(), "git", "rev-parse", "--show-toplevel", "--is-shallow-repository")
	repository.Dir = root
	if output, err := repository.Output(); err != nil || string(output) != root+"\nfalse\n" {
		t.Skipf("%s has no history, or a part of it: %q, %v", root, output, err)
	}
	if err := git(t.Context(), root, "merge-base", "--is-ancestor", Commit, "HEAD"); err != nil {
		t.Errorf("commit %s is not in the history of %s: %v", Commit, root, err)
	}
}

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
	_, err = treeOf(t.Context(), root, strings.Repeat("0", 40))
	if err == nil || !strings.Contains(err.Error(), "git fetch --unshallow") {
		t.Errorf("a commit that is not there: error %v", err)
	}
}
