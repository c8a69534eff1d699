package cache

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

func TestEntryIsBuiltOnceForManyCallers(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	var builds atomic.Int32
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			dir, err := Entry(context.Background(), "thing", "k1", func(_ context.Context, dir string) error {
				builds.Add(1)
				return os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o644)
			})
			if err != nil {
				t.Errorf("Entry: %v", err)
				return
			}
			if _, err := os.Stat(filepath.Join(dir, "f")); err != nil {
				t.Errorf("the entry lacks what was built: %v", err)
			}
		})
	}
	callers.Wait()
	if got := builds.Load(); got != 1 {
		t.Errorf("builds: want 1, got %d", got)
	}
}

func TestFailedBuildLeavesNothingAndMayBeTriedAgain(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	broken := errors.New("broken")
	_, err := Entry(context.Background(), "thing", "k", func(context.Context, string) error { return broken })
	if !errors.Is(err, broken) {
		t.Fatalf("Entry: want %v, got %v", broken, err)
	}
	dir, err := Entry(context.Background(), "thing", "k", func(_ context.Context, dir string) error { return nil })
	if err != nil {
		t.Fatalf("second try: %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 0 {
		t.Errorf("want an empty entry, got %v, %v", entries, err)
	}
}

func TestKeyKnowsBoundaries(t *testing.T) {
	if Key("ab", "c") == Key("a", "bc") {
		t.Error("the keys of different parts are the same")
	}
}
