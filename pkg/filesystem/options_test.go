package filesystem

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestMountOptions(t *testing.T) {
	label := `context="system_u:object_r:container_file_t:s0:c1,c2"`
	tests := []struct {
		name    string
		typ     Type
		dax     bool
		given   []string
		want    []string
		message string
	}{
		{name: "none are fine", typ: Ext4},
		{name: "one element may hold several", typ: Ext4, given: []string{"noatime,nodiratime", "commit=30"},
			want: []string{"noatime", "nodiratime", "commit=30"}},
		{name: "an SELinux context keeps its commas", typ: XFS, given: []string{label + ",noatime"},
			want: []string{label, "noatime"}},
		{name: "options of the other file system are refused", typ: XFS, given: []string{"commit=30"},
			message: `mount option "commit=30" is not allowed for xfs: allowed are `},
		{name: "the kernel may not be made to panic", typ: Ext4, given: []string{"errors=panic"},
			message: `mount option "errors=panic" is not allowed`},
		{name: "other mounts may not be touched", typ: Ext4, given: []string{"remount"},
			message: `mount option "remount" is not allowed`},
		{name: "an option that needs a value needs one", typ: Ext4, given: []string{"commit="},
			message: `mount option "commit=" is not allowed`},
		{name: "an option without a value takes none", typ: Ext4, given: []string{"noatime=1"},
			message: `mount option "noatime=1" is not allowed`},
		{name: "an empty option is refused", typ: Ext4, given: []string{"noatime,,ro"},
			message: `mount option "" is not allowed`},
		{name: "an open quote is refused", typ: Ext4, given: []string{`context="a`, `errors=panic`},
			message: `mount option "context=\"a" is not allowed`},
		{name: "control characters are refused", typ: Ext4, given: []string{"commit=1\n"},
			message: `mount option "commit=1\n" is not allowed`},
		{name: "too many are refused", typ: Ext4, given: slices.Repeat([]string{"noatime"}, 600),
			message: "mount options have 4800 characters: allowed are 4095"},
		{name: "DAX is switched on for a volume on persistent memory", typ: Ext4, dax: true, given: []string{"noatime"},
			want: []string{"noatime", "dax=always"}},
		{name: "DAX can be switched off there", typ: XFS, dax: true, given: []string{"dax=never"},
			want: []string{"dax=never"}},
		{name: "DAX is refused elsewhere", typ: XFS, given: []string{"dax=always"},
			message: `mount option "dax=always" is not allowed`},
		{name: "a type is required", message: "file system type is required"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := MountOptions(tt.typ, tt.dax, tt.given)
			if !strings.HasPrefix(message(err), tt.message) || tt.message == "" && err != nil {
				t.Errorf("error %v, want %q", err, tt.message)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestMountOptionsNeverLetMoreThroughThanWasChecked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		given := rapid.SliceOf(rapid.StringMatching(`[a-z=",:]{0,20}|noatime|commit=[0-9"]{1,2}|context="[a-z,"]{0,8}"`)).Draw(t, "given")
		got, err := MountOptions(Ext4, false, given)
		if err != nil {
			return
		}
		// What was accepted is the same list again after it was joined, as the
		// kernel gets it.
		again, err := MountOptions(Ext4, false, []string{strings.Join(got, ",")})
		if len(got) > 0 && (err != nil || !slices.Equal(got, again)) {
			t.Fatalf("%q became %q, %v", got, again, err)
		}
	})
}
