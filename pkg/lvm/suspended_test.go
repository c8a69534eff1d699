package lvm

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestSuspendedDevicesAreFoundByTheirGroup(t *testing.T) {
	sys := t.TempDir()
	for device, d := range map[string]struct{ name, suspended string }{
		"dm-0": {"carve-carve--pool-tpool", "1"},
		"dm-1": {"carve-cvx_rimage_0", "1"},
		"dm-2": {"carve-cvy", "0"},
		"dm-3": {"carve--more-cvz", "1"},
		"dm-4": {"other-cvz", "1"},
		"dm-5": {"carve-cvw", "1"},
	} {
		dir := filepath.Join(sys, "block", device, "dm")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, value := range map[string]string{"name": d.name, "suspended": d.suspended} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(value+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, err := listSuspended(sys, "carve")
	if slices.Sort(got); err != nil || !slices.Equal(got, []string{"carve-pool-tpool", "cvw", "cvx_rimage_0"}) {
		t.Errorf("%q, error %v", got, err)
	}
	got, err = listSuspended(sys, "carve-more")
	if err != nil || !slices.Equal(got, []string{"cvz"}) {
		t.Errorf("%q, error %v", got, err)
	}
}
