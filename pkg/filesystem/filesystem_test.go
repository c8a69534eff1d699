package filesystem

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

func TestParseType(t *testing.T) {
	tests := []struct {
		name, given string
		want        Type
		message     string
	}{
		{name: "empty is the default", given: "", want: Ext4},
		{name: "ext4 is known", given: "ext4", want: Ext4},
		{name: "xfs is known", given: "xfs", want: XFS},
		{name: "another one is refused and the allowed are listed", given: "ntfs",
			message: `file system "ntfs" is not supported: allowed are btrfs, ext4, xfs`},
		{name: "names are exact", given: "XFS",
			message: `file system "XFS" is not supported: allowed are btrfs, ext4, xfs`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseType(tt.given)
			if message(err) != tt.message || got != tt.want {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

func TestFormatRefusesBadOptionsBeforeTouchingTheDevice(t *testing.T) {
	tests := []struct {
		name    string
		size    int64
		options FormatOptions
		message string
	}{
		{name: "a type is required", size: 16 << 20, options: FormatOptions{UUID: testUUID},
			message: "file system type is required"},
		{name: "an unknown type", size: 16 << 20, options: FormatOptions{Type: "zfs", UUID: testUUID},
			message: `file system "zfs" is not supported`},
		{name: "a UUID is required", size: 16 << 20, options: FormatOptions{Type: Ext4},
			message: `file system UUID ""`},
		{name: "words that mkfs understands are no UUID", size: 16 << 20, options: FormatOptions{Type: Ext4, UUID: "random"},
			message: `file system UUID "random"`},
		{name: "a setting that the type does not know", size: 16 << 20, options: FormatOptions{Type: Ext4, UUID: testUUID, Settings: "node-size=4096"},
			message: `setting "node-size" is not allowed for ext4: allowed are block-size, bytes-per-inode, inode-size, label, reserved-percent`},
		{name: "a profile that the type cannot serve", size: 1 << 30, options: FormatOptions{Type: XFS, UUID: testUUID, Profile: Scratch},
			message: "profile scratch cannot be had with xfs"},
		{name: "a device below the minimum", size: 16<<20 - 1, options: FormatOptions{Type: Ext4, UUID: testUUID},
			message: "the device has 15.99Mi, at least 16Mi are needed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := Format(t.Context(), sparse(t, tt.size), tt.options)
			if err == nil || !strings.Contains(err.Error(), tt.message) {
				t.Errorf("got %v, want %q", err, tt.message)
			}
		})
	}
}

func TestFormatCommands(t *testing.T) {
	const gib = 1 << 30
	tests := []struct {
		name string
		args []string
		want string
	}{
		{"ext4 is forced, quick and without discard", ext4{}.mkfs("/dev/v", gib, FormatOptions{UUID: testUUID}),
			"mkfs.ext4 -q -F -b 4096 -m 0 -e remount-ro -U " + testUUID + " -O " + ext4Features + ",has_journal -E lazy_itable_init=1,lazy_journal_init=1,nodiscard /dev/v"},
		{"ext4 for DAX allocates in units of 2 MiB", ext4{}.mkfs("/dev/v", gib, FormatOptions{UUID: testUUID, DAX: true}),
			"mkfs.ext4 -q -F -b 4096 -m 0 -e remount-ro -U " + testUUID + " -O " + ext4Features + ",has_journal -E lazy_itable_init=1,lazy_journal_init=1,nodiscard,stride=512,stripe_width=512 /dev/v"},
		{"ext4 takes its settings", ext4{}.mkfs("/dev/v", gib, FormatOptions{UUID: testUUID,
			Settings: "block-size=1024,bytes-per-inode=8192,inode-size=512,label=cache,reserved-percent=5"}),
			"mkfs.ext4 -q -F -b 1024 -m 5 -e remount-ro -U " + testUUID + " -L cache -I 512 -i 8192 -O " + ext4Features + ",has_journal -E lazy_itable_init=1,lazy_journal_init=1,nodiscard /dev/v"},
		{"ext4 for scratch has a journal with fast commits", ext4{}.mkfs("/dev/v", gib, FormatOptions{UUID: testUUID, Profile: Scratch}),
			"mkfs.ext4 -q -F -b 4096 -m 0 -e remount-ro -U " + testUUID + " -O " + ext4Features + ",has_journal,fast_commit -E lazy_itable_init=1,lazy_journal_init=1,nodiscard /dev/v"},
		{"xfs takes its settings", xfs{}.mkfs("/dev/v", gib, FormatOptions{UUID: testUUID,
			Settings: "block-size=2048,inode-size=1024,label=cache,max-inode-percent=50,reflink=off"}),
			"mkfs.xfs -q -f -K -m uuid=" + testUUID + " -m " + xfsFeatures + " -i " + xfsInodeFeatures + " -m reflink=0 -L cache -b size=2048 -i size=1024 -i maxpct=50 /dev/v"},
		{"btrfs is forced, without discard, and gets its UUID later", btrfs{}.mkfs("/dev/v", gib, FormatOptions{UUID: testUUID}),
			"mkfs.btrfs -q -f -K -O " + btrfsFeatures + " -R " + btrfsRuntimeFeatures + " -d single -m dup /dev/v"},
		{"btrfs takes its settings", btrfs{}.mkfs("/dev/v", gib, FormatOptions{UUID: testUUID, Settings: "label=cache,metadata=single,node-size=32768"}),
			"mkfs.btrfs -q -f -K -O " + btrfsFeatures + " -R " + btrfsRuntimeFeatures + " -L cache -n 32768 -d single -m single /dev/v"},
		{"xfs is forced and without discard", xfs{}.mkfs("/dev/v", gib, FormatOptions{UUID: testUUID}),
			"mkfs.xfs -q -f -K -m uuid=" + testUUID + " -m " + xfsFeatures + " -i " + xfsInodeFeatures + " -m reflink=1 /dev/v"},
		{"xfs for DAX has no reflinks and allocates in units of 2 MiB", xfs{}.mkfs("/dev/v", gib, FormatOptions{UUID: testUUID, DAX: true}),
			"mkfs.xfs -q -f -K -m uuid=" + testUUID + " -m " + xfsFeatures + " -i " + xfsInodeFeatures + " -m reflink=0 -d su=2m,sw=1,extszinherit=512 /dev/v"},
		{"a small xfs for DAX has few allocation groups", xfs{}.mkfs("/dev/v", gib-1, FormatOptions{UUID: testUUID, DAX: true}),
			"mkfs.xfs -q -f -K -m uuid=" + testUUID + " -m " + xfsFeatures + " -i " + xfsInodeFeatures + " -m reflink=0 -d su=2m,sw=1,extszinherit=512 -d agcount=4 -l size=64m /dev/v"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := strings.Join(tt.args, " "); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestEveryTypeIsImplemented(t *testing.T) {
	if len(kinds) != len(Types()) || !slices.IsSorted(Types()) {
		t.Errorf("kinds %v, types %v", kinds, Types())
	}
	for _, typ := range Types() {
		if MinimumSize(typ, false) <= 0 || MinimumSize(typ, true) < MinimumSize(typ, false) {
			t.Errorf("%s: minimum sizes %d, %d", typ, MinimumSize(typ, false), MinimumSize(typ, true))
		}
	}
	if got := MinimumSize("zfs", false); got != 0 {
		t.Errorf("unknown type: %d", got)
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func sparse(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	f := must.Get(os.Create(path))(t)
	defer f.Close()
	must.Succeed(t, f.Truncate(size))
	return path
}
