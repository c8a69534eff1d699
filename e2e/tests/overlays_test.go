//go:build e2e

package tests

import (
	"os"
	"path/filepath"
	"testing"
)

// TestEveryOverlayIsAcceptedByTheAPIServer asks the API server to take in what
// users apply, without keeping it.
func TestEveryOverlayIsAcceptedByTheAPIServer(t *testing.T) {
	s := begin(t)
	const overlays = "../../deploy/overlays"
	entries, err := os.ReadDir(overlays)
	if err != nil || len(entries) == 0 {
		t.Fatalf("overlays: want some, got %d, %v", len(entries), err)
	}
	for _, entry := range entries {
		if output, err := s.Kubectl(s.ctx, nil, "apply", "--dry-run=server", "--kustomize", filepath.Join(overlays, entry.Name())); err != nil {
			t.Errorf("overlay %s: %v\n%s", entry.Name(), err, output)
		}
	}
}
