package kube

import (
	"path/filepath"
	"testing"

	"github.com/carve-csi/carve/e2e/checkout"
)

func TestVersionIsThatOfTheModule(t *testing.T) {
	root, err := checkout.Root()
	if err != nil {
		t.Fatal(err)
	}
	if err := checkVersion(filepath.Join(root, "e2e", "kube", "multicall")); err != nil {
		t.Error(err)
	}
}
