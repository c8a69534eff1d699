//go:build kernel

package lvm

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// TestTheKernelLoadsWhatATargetNeeds takes a target that nothing else here uses.
func TestTheKernelLoadsWhatATargetNeeds(t *testing.T) {
	loaded := func() bool {
		modules, err := os.ReadFile("/proc/modules")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains("\n"+string(modules), "\ndm_era ")
	}
	if loaded() {
		t.Fatal("dm_era is loaded: want a target whose module is not")
	}
	if err := provideTarget("era"); err != nil {
		t.Errorf("a target whose module is there: want no error, got %v", err)
	}
	if !loaded() {
		t.Error("dm_era is still not loaded")
	}
	if err := provideTarget("era"); err != nil {
		t.Errorf("a target that is there: want no error, got %v", err)
	}
	if err := provideTarget("nonsuch"); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), `"nonsuch"`) {
		t.Errorf("a target that no module has: want ErrUnavailable with its name, got %v", err)
	}
}
