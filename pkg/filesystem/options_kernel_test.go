//go:build kernel

package filesystem_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/driver/mount"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/must"
)

const optionsDisk = "/dev/vdc"

// usesOfDisks are all uses without persistent memory.
var usesOfDisks = []filesystem.Use{
	{Type: filesystem.Ext4}, {Type: filesystem.Ext4, Profile: filesystem.Scratch}, {Type: filesystem.XFS}, {Type: filesystem.Btrfs},
}

func TestTheKernelTakesEveryMountOption(t *testing.T) {
	for _, use := range usesOfDisks {
		t.Run(strings.TrimSpace(string(use.Type)+" "+string(use.Profile)), func(t *testing.T) {
			mountWithEveryOption(t, use)
		})
	}
}

// mountWithEveryOption mounts the use's file system with every allowed option,
// as many at a time as go together.
func mountWithEveryOption(t *testing.T, use filesystem.Use) {
	t.Helper()
	must.Succeed(t, filesystem.Format(t.Context(), optionsDisk, filesystem.FormatOptions{
		Type: use.Type, Profile: use.Profile, UUID: "01234567-89ab-cdef-0123-456789abcdef",
	}))
	dir, system := t.TempDir(), mount.System{}
	t.Cleanup(func() {
		if err := system.Unmount(dir); err != nil {
			t.Error(err)
		}
	})
	for left := filesystem.EveryMountOption(use); len(left) > 0; {
		var given, others []string
		for _, option := range left {
			if !goesWith(use, given, option) {
				others = append(others, option)
				continue
			}
			given = append(given, option)
		}
		if len(given) == 0 {
			t.Fatalf("not even one of these goes alone: %q", others)
		}
		left = others
		options, err := filesystem.MountOptions(use, given)
		if err == nil {
			options = append(use.JournalOptions(must.Get(filesystem.Probe(optionsDisk))(t)), options...)
			err = system.Mount(mount.Source{Node: optionsDisk}, dir, string(use.Type), options)
		}
		if err != nil {
			t.Errorf("with %q: %v; of these the kernel refuses by themselves %q", given, err, refused(t, use, given))
		}
		must.Succeed(t, system.Unmount(dir))
	}
}

// goesWith reports whether the option is allowed with the others without
// overriding any.
func goesWith(use filesystem.Use, others []string, option string) bool {
	name, _, _ := strings.Cut(option, "=")
	if slices.ContainsFunc(others, func(o string) bool { had, _, _ := strings.Cut(o, "="); return had == name }) {
		return false
	}
	_, err := filesystem.MountOptions(use, append(slices.Clone(others), option))
	return err == nil
}

// refused returns the options that the kernel refuses alone.
func refused(t *testing.T, use filesystem.Use, options []string) []string {
	t.Helper()
	dir, system := t.TempDir(), mount.System{}
	var bad []string
	for _, option := range options {
		if system.Mount(mount.Source{Node: optionsDisk}, dir, string(use.Type), []string{option}) != nil {
			bad = append(bad, option)
		}
		must.Succeed(t, system.Unmount(dir))
	}
	return bad
}
