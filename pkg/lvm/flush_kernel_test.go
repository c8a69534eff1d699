//go:build kernel

package lvm_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/must"
)

// flushes counts the flushes sent to a disk (Documentation/block/stat.rst).
func flushes(t *testing.T, disk string) int {
	t.Helper()
	b := must.Get(os.ReadFile("/sys/block/" + disk + "/stat"))(t)
	n := must.Get(strconv.Atoi(strings.Fields(string(b))[15]))(t)
	return n
}

func TestWhatACommandDidIsFlushedToTheDisk(t *testing.T) {
	h := host(t)
	group(t, "flushed")
	var err error
	for _, c := range []struct {
		name string
		run  func() error
	}{
		{"a scan, of what was found", func() error { _, err = h.Scan(t.Context(), []string{"flushed"}); return err }},
		{"a creation", func() error {
			return h.Create(t.Context(), lvm.CreateOptions{Group: "flushed", Volume: "a", Extents: 1})
		}},
		{"an extension", func() error { return h.Extend(t.Context(), "flushed", "a", 2) }},
		{"a removal", func() error { return h.Remove(t.Context(), "flushed", []string{"a"}) }},
	} {
		before := flushes(t, "vdb")
		if err := c.run(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if flushes(t, "vdb") == before {
			t.Errorf("%s is not flushed", c.name)
		}
	}
}
