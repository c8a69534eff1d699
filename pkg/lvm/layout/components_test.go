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
		"carve-cached_corig", "carve-fast_cvol", "carve-fast_cvol-cdata", "carve-fast_cvol-cmeta", "carve-cdata", "carve-x--cdata",
		"carve-slow_cvol", "carve-slow_cvol-cmeta", "carve-theirs_corig", "carve--more-fast_cvol",
		"carve-written_wcorig", "carve-written", "carve-log_cvol",
		"carve-stacked_tdata_corig", "carve-nvme--1_cpool_cdata_rimage_1", "carve-nvme--1_cpool_cmeta", "carve-split",
		"carve-alone_rimage_1_iorig", "carve-alone_rimage_1_imeta",
	}
	volumes := []string{"alone", "whole", "carve-pool", "new-pool", "fresh", "x", "linear", "mirrored", "cached", "written", "stacked", "split"}
	caches := map[string]string{"fast_cvol": "cached", "slow_cvol": "theirs", "log_cvol": "written", "nvme-1_cpool": "stacked_tdata"}
	for group, want := range map[string][]string{
		"carve": {"carve-alone_rimage_1", "carve-alone_rmeta_0", "carve-new--pool_tmeta", "carve-mirrored_tdata_rimage_0",
			"carve-cached_corig", "carve-fast_cvol", "carve-fast_cvol-cdata", "carve-fast_cvol-cmeta",
			"carve-stacked_tdata_corig", "carve-nvme--1_cpool_cdata_rimage_1", "carve-nvme--1_cpool_cmeta"},
		"carve-more": {"carve--more-x_rmeta_0", "carve--more-fast_cvol"},
		"none":       nil,
	} {
		if got := Leftovers(names, group, volumes, caches); !slices.Equal(got, want) {
			t.Errorf("%s: %q", group, got)
		}
	}
}

func TestDevicesOfCachesAreOfTheirGroup(t *testing.T) {
	for name, want := range map[string]bool{
		"carve-a_cvol": true, "carve-a_cvol-cmeta": true, "carve-a_cdata": true, "carve-a_cpool_cmeta_rimage_0": true,
		"carve--more-a_cvol": false, "carve-a": false, "carve-a_tmeta": false,
	} {
		if got := HaveCache([]string{"carve-x", name}, "carve"); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestWhatLiesBelowComesFirst(t *testing.T) {
	for name, want := range map[string]int{
		"carve-cvx": 0, "carve-pool": 0, "carve-pool-tpool": -1, "carve-big--tpool": 0, "carve-cvx_rmeta_12": -2, "carve-pool_tdata": -2, "carve-pool_tmeta_rimage_0": -3,
		"carve-cvx_corig": -2, "carve-cvx_rimage_0_iorig": -3,
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
