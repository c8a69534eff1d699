package checkout

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRootIsFoundFromInside(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "e2e", "checkout", "checkout.go")); err != nil {
		t.Errorf("Root returned %s: %v", root, err)
	}
}

func TestOutsideOfACheckoutThereIsNoRoot(t *testing.T) {
	t.Chdir(t.TempDir())
	if root, err := Root(); err == nil {
		t.Errorf("Root: want an error, got %s", root)
	}
}
