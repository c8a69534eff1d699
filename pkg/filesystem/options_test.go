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
		profile Profile
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
		{name: "a number has to be one", typ: Ext4, given: []string{"commit=soon"},
			message: `mount option "commit=soon" is not allowed for ext4`},
		{name: "a number has to be in its range", typ: XFS, given: []string{"logbufs=9"},
			message: `mount option "logbufs=9" is not allowed for xfs`},
		{name: "a size has to be a power of two", typ: XFS, given: []string{"allocsize=65k"},
			message: `mount option "allocsize=65k" is not allowed for xfs`},
		{name: "a size may have a suffix", typ: XFS, given: []string{"allocsize=64m", "logbsize=256k"},
			want: []string{"allocsize=64m", "logbsize=256k"}},
		{name: "a number has no suffix where the kernel reads none", typ: Ext4, given: []string{"inode_readahead_blks=32k"},
			message: `mount option "inode_readahead_blks=32k" is not allowed for ext4`},
		{name: "a number that is a power of two", typ: Ext4, given: []string{"inode_readahead_blks=32"},
			want: []string{"inode_readahead_blks=32"}},
		{name: "what Linux 6.1 has no more is refused", typ: Ext4, given: []string{"acl,user_xattr,noacl"},
			message: `mount option "noacl" is not allowed for ext4`},
		{name: "some options stand alone or have a value", typ: Btrfs, given: []string{"compress,discard=async,compress-force=zstd:3"},
			want: []string{"compress", "discard=async", "compress-force=zstd:3"}},
		{name: "other subvolumes are not reached", typ: Btrfs, given: []string{"subvol=/"},
			message: `mount option "subvol=/" is not allowed for btrfs`},
		{name: "what ext4 refuses alone is refused", typ: Ext4, given: []string{"journal_async_commit"},
			message: `mount option "journal_async_commit" is not allowed for ext4 by itself: allowed are it together with data=writeback or data=journal`},
		{name: "what ext4 refuses together is refused", typ: Ext4, given: []string{"data=journal,delalloc"},
			message: `mount option "data=journal" is not allowed for ext4 with delalloc`},
		{name: "scratch brings its options, which the class can undo", typ: Ext4, profile: Scratch, given: []string{"barrier=1"},
			want: []string{"noatime", "nobarrier", "noauto_da_alloc", "barrier=1"}},
		{name: "the journal of scratch is not the class's to tune", typ: Ext4, profile: Scratch, given: []string{"data=writeback"},
			message: `mount option "data=writeback" is not allowed for ext4 of profile scratch`},
		{name: "a type is required", message: "file system type is required"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := MountOptions(Use{Type: tt.typ, DAX: tt.dax, Profile: tt.profile}, tt.given)
			if !strings.HasPrefix(message(err), tt.message) || tt.message == "" && err != nil {
				t.Errorf("error %v, want %q", err, tt.message)
			}
			if err == nil && !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestOptionsOfTheJournalAreForScratchThatHasOne(t *testing.T) {
	scratch := Use{Type: Ext4, Profile: Scratch}
	for _, tt := range []struct {
		name string
		use  Use
		info Info
		want []string
	}{
		{"scratch", scratch, Info{Type: Ext4, Journal: true}, []string{"data=writeback", "commit=300", "noinit_itable"}},
		{"scratch of before, which has no journal", scratch, Info{Type: Ext4}, nil},
		{"what is to be kept", Use{Type: Ext4}, Info{Type: Ext4, Journal: true}, nil},
	} {
		if got := tt.use.JournalOptions(tt.info); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestMountOptionsNeverLetMoreThroughThanWasChecked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		given := rapid.SliceOf(rapid.StringMatching(`[a-z=",:]{0,20}|noatime|commit=[0-9"]{1,2}|context="[a-z,"]{0,8}"`)).Draw(t, "given")
		got, err := MountOptions(Use{Type: Ext4}, given)
		if err != nil {
			return
		}
		// Joined for the kernel, the accepted options still parse to the same
		// list.
		again, err := MountOptions(Use{Type: Ext4}, []string{strings.Join(got, ",")})
		if len(got) > 0 && (err != nil || !slices.Equal(got, again)) {
			t.Fatalf("%q became %q, %v", got, again, err)
		}
	})
}
