package lvm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/must"
)

func TestInconsistentDevicesAreFoundByTheirGroup(t *testing.T) {
	sys := t.TempDir()
	for device, d := range map[string]struct{ name, suspended, size string }{
		"dm-0": {"carve-carve--pool-tpool", "1", "8192"},
		"dm-1": {"carve-cvx_rimage_0", "1", "8192"},
		"dm-2": {"carve-cvy", "0", "8192"},
		"dm-3": {"carve--more-cvz", "1", "8192"},
		"dm-4": {"other-cvz", "1", "8192"},
		"dm-5": {"carve-cvw", "1", "8192"},
		"dm-6": {"carve-cvlonger", "0", "16384"},
		"dm-7": {"carve-cvloaded", "0", "8192"},
		"dm-8": {"carve-cvunknown", "0", "8192"},
		"dm-9": {"carve-big--pool-tpool", "0", "16384"},
	} {
		dir := filepath.Join(sys, "block", device, "dm")
		must.Succeed(t, os.MkdirAll(dir, 0o755))
		for file, value := range map[string]string{"name": d.name, "suspended": d.suspended, "../size": d.size} {
			must.Succeed(t, os.WriteFile(filepath.Join(dir, file), []byte(value+"\n"), 0o600))
		}
	}
	const size = 4 << 20
	sizes := map[string]int64{"carve-pool": size, "big-pool": size, "cvx_rimage_0": size, "cvy": size, "cvw": size, "cvlonger": size, "cvloaded": size}
	for group, want := range map[string][]string{
		"carve":      {"big-pool-tpool", "carve-pool-tpool", "cvloaded", "cvlonger", "cvw", "cvx_rimage_0"},
		"carve-more": {"cvz"},
		"none":       nil,
	} {
		found, err := listInconsistent(sys, group, sizes, func(name string) (bool, error) { return name == "carve-cvloaded", nil })
		var got []string
		for _, d := range found {
			got = append(got, d.volume)
		}
		if slices.Sort(got); err != nil || !slices.Equal(got, want) {
			t.Errorf("group %s: %q, error %v", group, got, err)
		}
	}
}

func TestSizesAreNotKnownWhileMetadataCannotBeRead(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want error
	}{
		"they are read":          {},
		"a disk does not answer": {err: fmt.Errorf("volume group carve: %w", ErrTimedOut), want: ErrTimedOut},
		"they are not understood, for as long as nothing else is written": {err: fmt.Errorf("volume group carve: %w", errNotUnderstood)},
		"there are none": {err: fmt.Errorf("volume group carve: %w: %w", ErrNotFound, errNoMetadata)},
	} {
		sizes, err := sizesOf(ondisk.Placement{Volumes: map[string]ondisk.Volume{"cva": {Size: 1 << 20}}}, c.err)
		if !errors.Is(err, c.want) || err == nil && c.err == nil && sizes["cva"] != 1<<20 {
			t.Errorf("%s: sizes %v, error %v, want %v", name, sizes, err, c.want)
		}
	}
}
