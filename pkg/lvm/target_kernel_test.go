//go:build kernel

package lvm

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

// No other test uses this target.
func TestTheKernelLoadsWhatATargetNeeds(t *testing.T) {
	loaded := func() bool {
		modules := must.Get(os.ReadFile("/proc/modules"))(t)
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
