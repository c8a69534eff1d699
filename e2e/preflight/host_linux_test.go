package preflight

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAvailableMemoryIsReadOrMissed(t *testing.T) {
	got, err := available("MemTotal:       16318480 kB\nMemAvailable:    2097152 kB\n")
	if err != nil || got != 2048 {
		t.Errorf("got %d MiB, error %v; want 2048", got, err)
	}
	if got, err := available("MemTotal: 16318480 kB\n"); err == nil {
		t.Errorf("got %d MiB where it is not said", got)
	}
}

func TestThisMachineIsLookedAt(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("PATH", t.TempDir())
	h, err := look(Needs{})
	if err != nil {
		t.Fatal(err)
	}
	if h.system != "linux" || h.root != (os.Geteuid() == 0) || h.memoryMiB == 0 || h.cache.freeMiB == 0 || !h.cold || len(h.absent) != len(programs) {
		t.Errorf("got %+v", h)
	}
	if why := openable(filepath.Join(t.TempDir(), "tun")); why == "" {
		t.Error("a device that is not there can be opened")
	}
	if why := openable(os.DevNull); why != "" {
		t.Errorf("%s cannot be opened: %s", os.DevNull, why)
	}
}
