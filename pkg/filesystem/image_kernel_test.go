//go:build kernel

package filesystem

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

// TestFormattedImages runs the real tools on image files: Probe must recognize
// the output of mkfs.
func TestFormattedImages(t *testing.T) {
	const mib = 1 << 20
	tests := []struct {
		name string
		size int64
		FormatOptions
	}{
		{"the smallest ext4", MinimumSize(Ext4, false), FormatOptions{Type: Ext4}},
		{"the smallest ext4 for DAX", MinimumSize(Ext4, true), FormatOptions{Type: Ext4, DAX: true}},
		{"an ext4 of 1 GiB", 1024 * mib, FormatOptions{Type: Ext4}},
		{"an ext4 of 4 TiB", 4 << 40, FormatOptions{Type: Ext4}},
		{"the smallest xfs", MinimumSize(XFS, false), FormatOptions{Type: XFS}},
		{"the smallest xfs for DAX", MinimumSize(XFS, true), FormatOptions{Type: XFS, DAX: true}},
		{"an xfs for DAX of 508 MiB", 508 * mib, FormatOptions{Type: XFS, DAX: true}},
		{"an xfs for DAX of 1020 MiB", 1020 * mib, FormatOptions{Type: XFS, DAX: true}},
		{"an xfs for DAX of 1 GiB", 1024 * mib, FormatOptions{Type: XFS, DAX: true}},
		{"an xfs of 5 GiB", 5 << 30, FormatOptions{Type: XFS}},
		{"the smallest btrfs", MinimumSize(Btrfs, false), FormatOptions{Type: Btrfs}},
		{"a btrfs of 1 TiB", 1 << 40, FormatOptions{Type: Btrfs}},
		{"the smallest ext4 for scratch", MinimumSize(Ext4, false), FormatOptions{Type: Ext4, Profile: Scratch}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			device := sparse(t, tt.size)
			tt.UUID = testUUID
			must.Succeed(t, Format(t.Context(), device, tt.FormatOptions))
			info := must.Get(Probe(device))(t)
			if want := (Info{Type: tt.Type, UUID: testUUID, SizeBytes: tt.size, Journal: tt.Type == Ext4}); info != want {
				t.Errorf("got %+v, want %+v", info, want)
			}
			if err := Check(t.Context(), device, tt.Type, CheckOptions{Memory: checkMemory}); err != nil {
				t.Errorf("a fresh file system does not pass: %v", err)
			}
		})
	}
}

func TestFormatReplacesWhateverIsThere(t *testing.T) {
	device := sparse(t, 512<<20)
	for _, typ := range []Type{Ext4, XFS, Btrfs, Ext4, Ext4, Btrfs, Btrfs, XFS, XFS} {
		must.Succeed(t, Format(t.Context(), device, FormatOptions{Type: typ, UUID: testUUID}))
		if info, err := Probe(device); err != nil || info.Type != typ || info.NeedsCheck {
			t.Errorf("%s: got %+v, %v", typ, info, err)
		}
	}
}

func TestCheckRepairsWhatIsSafeAndReportsTheRest(t *testing.T) {
	t.Run("an ext4 marked as having errors is clean afterwards", func(t *testing.T) {
		device := formatted(t, Ext4)
		debugfs(t, device, "set_super_value state 3")
		if info, err := Probe(device); err != nil || !info.NeedsCheck {
			t.Fatalf("before: %+v, %v", info, err)
		}
		must.Succeed(t, Check(t.Context(), device, Ext4, CheckOptions{Memory: checkMemory}))
		if info, err := Probe(device); err != nil || info.NeedsCheck || info.UUID != testUUID {
			t.Errorf("after: %+v, %v", info, err)
		}
	})
	t.Run("an ext4 with errors on record, although clean, is clean afterwards", func(t *testing.T) {
		device := formatted(t, Ext4)
		debugfs(t, device, "set_super_value error_count 7")
		if info, err := Probe(device); err != nil || !info.NeedsCheck {
			t.Fatalf("before: %+v, %v", info, err)
		}
		must.Succeed(t, Check(t.Context(), device, Ext4, CheckOptions{Memory: checkMemory}))
		if info, err := Probe(device); err != nil || info.NeedsCheck {
			t.Errorf("after: %+v, %v", info, err)
		}
	})
	t.Run("an ext4 without its root directory needs an administrator", func(t *testing.T) {
		device := formatted(t, Ext4)
		debugfs(t, device, "clri <2>")
		debugfs(t, device, "set_super_value state 2")
		if err := Check(t.Context(), device, Ext4, CheckOptions{Memory: checkMemory}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("got %v, want ErrCorrupt", err)
		}
	})
}

// checkMemory suffices for checks of small file systems.
const checkMemory = 32 << 20

func TestACheckThatMayNotHaveTheMemoryThatItNeedsSaysSo(t *testing.T) {
	for _, c := range []struct {
		typ Type
		// spoil makes a check necessary.
		spoil func(device string)
		// enough memory for the check, and too little.
		enough, little int64
	}{
		{Ext4, func(device string) { debugfs(t, device, "set_super_value state 3") }, checkMemory, 256 << 10},
		{XFS, func(device string) {
			must.Succeed(t, run(t.Context(), "", []string{"xfs_db", "-x", "-c", "sb 0", "-c", "write -d features_incompat 0x1b", device}))
		}, 128 << 20, 2 << 20},
	} {
		t.Run(string(c.typ), func(t *testing.T) {
			device := formatted(t, c.typ)
			c.spoil(device)
			if info, err := Probe(device); err != nil || !info.NeedsCheck {
				t.Fatalf("before: %+v, %v", info, err)
			}
			if err := Check(t.Context(), device, c.typ, CheckOptions{Memory: c.little}); !errors.Is(err, ErrMemory) {
				t.Errorf("within %d bytes: %v, want %v", c.little, err, ErrMemory)
			}
			if info, err := Probe(device); err != nil || !info.NeedsCheck {
				t.Errorf("after a check that could not run: %+v, %v", info, err)
			}
			must.Succeed(t, Check(t.Context(), device, c.typ, CheckOptions{Memory: c.enough}))
			if info, err := Probe(device); err != nil || info.NeedsCheck || info.UUID != testUUID {
				t.Errorf("after: %+v, %v", info, err)
			}
		})
	}
}

func TestCheckOfADamagedSuperblockSaysWhatToDo(t *testing.T) {
	device := formatted(t, Ext4)
	patch(t, device, ext4SuperblockStart+ext4Checksum, []byte{1, 2, 3, 4})
	if info, err := Probe(device); err != nil || !info.NeedsCheck {
		t.Errorf("got %+v, %v", info, err)
	}
	if err := Check(t.Context(), device, Ext4, CheckOptions{Memory: checkMemory}); err == nil || !strings.Contains(err.Error(), "alternate superblock") {
		t.Errorf("got %v", err)
	}
}

func TestCheckReplacesADamagedSuperblockOfBtrfs(t *testing.T) {
	device := formatted(t, Btrfs)
	patch(t, device, btrfsSuperblocks[0], []byte{1, 2, 3, 4})
	if info, err := Probe(device); err != nil || !info.NeedsCheck {
		t.Fatalf("before: %+v, %v", info, err)
	}
	must.Succeed(t, Check(t.Context(), device, Btrfs, CheckOptions{Memory: checkMemory}))
	if info, err := Probe(device); err != nil || info.NeedsCheck || info.UUID != testUUID {
		t.Errorf("after: %+v, %v", info, err)
	}
}

// TestSettingsReachTheFileSystem runs mkfs with every value of every setting on
// the smallest device, and with the extremes together.
func TestSettingsReachTheFileSystem(t *testing.T) {
	for _, typ := range Types() {
		for _, s := range EverySetting(t, typ) {
			t.Run(string(typ)+" with "+string(s), func(t *testing.T) {
				device := sparse(t, MinimumSize(typ, false))
				must.Succeed(t, Format(t.Context(), device, FormatOptions{Type: typ, UUID: testUUID, Settings: s}))
				if info, err := Probe(device); err != nil || info.NeedsCheck || info.UUID != testUUID {
					t.Errorf("got %+v, %v", info, err)
				}
				if got := labelOf(t, device); got != s.value(SettingLabel) {
					t.Errorf("label %q", got)
				}
			})
		}
	}
}

func labelOf(t *testing.T, device string) string {
	t.Helper()
	out, err := exec.Command("blkid", "-p", "-s", "LABEL", "-o", "value", device).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// debugfs changes a file system behind the kernel's back, with correct
// checksums.
func debugfs(t *testing.T, device, request string) {
	t.Helper()
	must.Succeed(t, run(t.Context(), "", []string{"debugfs", "-w", "-R", request, device}))
}

func formatted(t *testing.T, typ Type) string {
	t.Helper()
	device := sparse(t, max(64<<20, MinimumSize(typ, false)))
	must.Succeed(t, Format(t.Context(), device, FormatOptions{Type: typ, UUID: testUUID}))
	return device
}

func patch(t *testing.T, path string, at int64, b []byte) {
	t.Helper()
	f := must.Get(os.OpenFile(path, os.O_WRONLY, 0))(t)
	defer f.Close()
	must.Get(f.WriteAt(b, at))(t)
}
