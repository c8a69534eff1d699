//go:build kernel

package filesystem

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

// TestNewFileSystemsHaveTheFeaturesThatAreNamed reads superblocks made by the
// real tools: a newer tool must not add features that older kernels do not
// mount.
func TestNewFileSystemsHaveTheFeaturesThatAreNamed(t *testing.T) {
	little, big := binary.LittleEndian, binary.BigEndian
	const (
		// fs/ext4/ext4.h: has_journal is 0x4, fast_commit is 0x400.
		ext4Compat, ext4Incompat, ext4ROCompat = 0x8 | 0x10 | 0x20, 0x2 | 0x40 | 0x80 | 0x200, 0x1 | 0x2 | 0x8 | 0x20 | 0x40 | 0x400
		// fs/xfs/libxfs/xfs_format.h: finobt, inobtcount, and reflink as 0x4; ftype, sparse inodes, bigtime.
		xfsROCompat, xfsIncompat = 0x1 | 0x8, 0x1 | 0x2 | 0x8
		// include/uapi/linux/btrfs.h: a valid free space tree; mixed backrefs,
		// extended references, skinny metadata, no holes, a UUID of the metadata.
		btrfsROCompat, btrfsIncompat = 0x1 | 0x2, 0x1 | 0x40 | 0x100 | 0x200 | 0x400
	)
	for _, tt := range []struct {
		name    string
		options FormatOptions
		order   binary.ByteOrder
		at      int64
		want    []uint32
	}{
		{"ext4", FormatOptions{Type: Ext4}, little, 1024 + 0x5c, []uint32{ext4Compat | 0x4, ext4Incompat, ext4ROCompat}},
		{"ext4 for DAX", FormatOptions{Type: Ext4, DAX: true}, little, 1024 + 0x5c, []uint32{ext4Compat | 0x4, ext4Incompat, ext4ROCompat}},
		{"ext4 for scratch", FormatOptions{Type: Ext4, Profile: Scratch}, little, 1024 + 0x5c, []uint32{ext4Compat | 0x4 | 0x400, ext4Incompat, ext4ROCompat}},
		{"xfs", FormatOptions{Type: XFS}, big, 208, []uint32{0, xfsROCompat | 0x4, xfsIncompat}},
		{"xfs without shared extents", FormatOptions{Type: XFS, Settings: "reflink=off"}, big, 208, []uint32{0, xfsROCompat, xfsIncompat}},
		{"xfs for DAX", FormatOptions{Type: XFS, DAX: true}, big, 208, []uint32{0, xfsROCompat, xfsIncompat}},
		{"btrfs", FormatOptions{Type: Btrfs}, little, 64<<10 + 0xac, []uint32{0, 0, btrfsROCompat, 0, btrfsIncompat, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			device := sparse(t, 1<<30)
			tt.options.UUID = testUUID
			must.Succeed(t, Format(t.Context(), device, tt.options))
			f := must.Get(os.Open(device))(t)
			defer f.Close()
			for i, want := range tt.want {
				word := make([]byte, 4)
				must.Get(f.ReadAt(word, tt.at+int64(4*i)))(t)
				if got := tt.order.Uint32(word); got != want {
					t.Errorf("word %d of the features: want %#x, got %#x", i, want, got)
				}
			}
		})
	}
}
