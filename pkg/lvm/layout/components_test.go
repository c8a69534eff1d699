package layout

import (
	"slices"
	"testing"
)

func TestComponentsWithoutTheirVolumeAreFoundByTheirGroup(t *testing.T) {
	names := []string{
		"carve-alone_rimage_1", "carve-alone_rmeta_0",
		"carve-whole_rmeta_0", "carve-whole",
		"carve-carve--pool_tdata", "carve-carve--pool-tpool",
		"carve-new--pool_tmeta",
		"carve-fresh_tmeta", "carve-fresh",
		"carve--more-x_rmeta_0", "other-x_rmeta_0", "carve-linear",
		"carve-repaired_tmeta", "carve-mirrored_tdata_rimage_0", "carve-alone_x_rmeta_0",
	}
	volumes := []string{"alone", "whole", "carve-pool", "new-pool", "fresh", "x", "linear", "mirrored"}
	for group, want := range map[string][]string{
		"carve":      {"carve-alone_rimage_1", "carve-alone_rmeta_0", "carve-new--pool_tmeta", "carve-mirrored_tdata_rimage_0"},
		"carve-more": {"carve--more-x_rmeta_0"},
		"none":       nil,
	} {
		if got := Leftovers(names, group, volumes); !slices.Equal(got, want) {
			t.Errorf("%s: %q", group, got)
		}
	}
}

func TestWhatLiesBelowComesFirst(t *testing.T) {
	for name, want := range map[string]int{
		"carve-cvx": 0, "carve-pool": 0, "carve-pool-tpool": -1, "carve-big--tpool": 0, "carve-cvx_rmeta_12": -2, "carve-pool_tdata": -2, "carve-pool_tmeta_rimage_0": -3,
	} {
		if got := Level(name); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}

func TestAComponentIsOfItsVolume(t *testing.T) {
	for name, want := range map[string]bool{
		"pool": true, "pool-tpool": true, "pool_tdata": true, "pools": false, "poo": false, "": false,
	} {
		if got := IsOf(name, "pool"); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

func TestHyphensAreDoubledInDeviceNames(t *testing.T) {
	if got := DeviceName("my-vg", "a-b--c"); got != "my--vg-a--b----c" {
		t.Errorf("device-mapper name %q", got)
	}
}
