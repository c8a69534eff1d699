package filesystem

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParseSettings(t *testing.T) {
	tests := []struct {
		name    string
		use     Use
		given   map[string]string
		want    Settings
		message string
	}{
		{name: "none are the defaults", use: Use{Type: Ext4}},
		{name: "they are sorted, and sizes are in bytes", use: Use{Type: Ext4},
			given: map[string]string{"label": "cache-1", "block-size": "1Ki", "bytes-per-inode": "1Mi"},
			want:  "block-size=1024,bytes-per-inode=1048576,label=cache-1"},
		{name: "an unknown one is refused and the known are listed", use: Use{Type: XFS}, given: map[string]string{"bytes-per-inode": "4096"},
			message: `setting "bytes-per-inode" is not allowed for xfs: allowed are block-size, inode-size, label, max-inode-percent, reflink, root-mode, root-owner`},
		{name: "a block size has to be one of the file system's", use: Use{Type: Ext4}, given: map[string]string{"block-size": "65536"},
			message: `setting "block-size=65536" is not allowed for ext4: allowed are 1024, 2048, 4096`},
		{name: "a label cannot be an option", use: Use{Type: XFS}, given: map[string]string{"label": "-f"},
			message: `setting "label=-f" is not allowed for xfs: allowed are 1 to 12 of [A-Za-z0-9._-], not beginning with -`},
		{name: "a label has to fit", use: Use{Type: XFS}, given: map[string]string{"label": "thirteenchars"},
			message: `setting "label=thirteenchars" is not allowed for xfs: allowed are 1 to 12`},
		{name: "a number has no unit", use: Use{Type: Ext4}, given: map[string]string{"reserved-percent": "5%"},
			message: `setting "reserved-percent=5%" is not allowed for ext4: allowed are 0 to 50`},
		{name: "an inode of xfs takes at most half a block", use: Use{Type: XFS}, given: map[string]string{"block-size": "1024", "inode-size": "1024"},
			message: `setting "inode-size=1024" is not allowed for xfs with blocks of 1024 bytes: allowed are 512 or less`},
		{name: "inodes cannot take all of the volume", use: Use{Type: Ext4}, given: map[string]string{"inode-size": "1024", "bytes-per-inode": "1024"},
			message: `setting "bytes-per-inode=1024" is not allowed for ext4 with blocks of 4096 and inodes of 1024 bytes: allowed are 4096 to 67108864`},
		{name: "persistent memory needs blocks of a page", use: Use{Type: XFS, DAX: true}, given: map[string]string{"block-size": "1024"},
			message: `setting "block-size=1024" is not allowed for xfs on persistent memory: allowed are 4096`},
		{name: "persistent memory and reflinks exclude each other", use: Use{Type: XFS, DAX: true}, given: map[string]string{"reflink": "on"},
			message: `setting "reflink=on" is not allowed for xfs on persistent memory: allowed are off`},
		{name: "the owner and mode of the root are numbers", use: Use{Type: XFS}, given: map[string]string{"root-owner": "010:4294967294", "root-mode": "777"},
			want: "root-mode=0777,root-owner=10:4294967294"},
		{name: "every directory may be sticky and give its group", use: Use{Type: Btrfs}, given: map[string]string{"root-mode": "3777"}, want: "root-mode=3777"},
		{name: "an owner has a group", use: Use{Type: Ext4}, given: map[string]string{"root-owner": "1000"},
			message: `setting "root-owner=1000" is not allowed for ext4: allowed are UID:GID, each 0 to 4294967294`},
		{name: "an owner has no third number", use: Use{Type: Ext4}, given: map[string]string{"root-owner": "1:2:3"}, message: `setting "root-owner=1:2:3"`},
		{name: "an owner has no name", use: Use{Type: Ext4}, given: map[string]string{"root-owner": "app:app"}, message: `setting "root-owner=app:app"`},
		{name: "no owner has the number for none", use: Use{Type: Ext4}, given: map[string]string{"root-owner": "0:4294967295"}, message: `setting "root-owner=0:4294967295"`},
		{name: "no owner is negative", use: Use{Type: Ext4}, given: map[string]string{"root-owner": "-1:0"}, message: `setting "root-owner=-1:0"`},
		{name: "a mode is octal", use: Use{Type: Ext4}, given: map[string]string{"root-mode": "0800"},
			message: `setting "root-mode=0800" is not allowed for ext4: allowed are 0 to 3777 in octal`},
		{name: "setuid does nothing to a directory", use: Use{Type: Ext4}, given: map[string]string{"root-mode": "4755"}, message: `setting "root-mode=4755"`},
		{name: "a mode has no letters", use: Use{Type: Ext4}, given: map[string]string{"root-mode": "u=rwx"}, message: `setting "root-mode=u=rwx"`},
		{name: "a type is required", message: "file system type is required"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseSettings(tt.use, tt.given)
			if !strings.HasPrefix(message(err), tt.message) || tt.message == "" && err != nil {
				t.Errorf("error %v, want %q", err, tt.message)
			}
			if err == nil && got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestSettingsAreReadBackAsTheyWere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		use := Use{Type: rapid.SampledFrom(Types()).Draw(t, "type")}
		given := map[string]string{}
		for _, name := range SettingNames(use.Type) {
			if rapid.Bool().Draw(t, name) {
				given[name] = rapid.SampledFrom([]string{"0", "1", "5", "512", "1Ki", "4096", "4Ki", "1Mi", "1777", "1:02", "on", "single", "a.b", ",", "=", "x=y,z"}).Draw(t, "value")
			}
		}
		s, err := ParseSettings(use, given)
		var refused *OptionError
		if errors.As(err, &refused) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseSettings(use, s.Map())
		if err != nil || again != s || len(s.Map()) != len(given) || !maps.Equal(again.Map(), s.Map()) {
			t.Fatalf("%v became %q and %q, %v", given, s, again, err)
		}
	})
}

func TestUse(t *testing.T) {
	tests := []struct {
		name    string
		use     Use
		message string
	}{
		{name: "every type is for usual data", use: Use{Type: Btrfs}},
		{name: "ext4 is for scratch data, also on persistent memory", use: Use{Type: Ext4, Profile: Scratch, DAX: true}},
		{name: "btrfs is not for scratch data", use: Use{Type: Btrfs, Profile: Scratch}, message: "profile scratch cannot be had with btrfs"},
		{name: "an unknown profile", use: Use{Type: Ext4, Profile: "fast"}, message: `profile "fast" is not known: allowed is scratch, or none`},
		{name: "btrfs has no DAX", use: Use{Type: Btrfs, DAX: true}, message: "file system btrfs cannot be used on persistent memory: allowed are ext4, xfs"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.use.Check(); !strings.HasPrefix(message(err), tt.message) || tt.message == "" && err != nil {
				t.Errorf("got %v, want %q", err, tt.message)
			}
		})
	}
}
