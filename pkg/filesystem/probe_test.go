package filesystem

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/carve-csi/carve/pkg/must"
)

const testUUID = "01234567-89ab-cdef-0123-456789abcdef"

var testUUIDBytes = []byte{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef}

// ext4Start returns the start of a clean ext4 of 1 GiB, with a correct checksum
// after change.
func ext4Start(change func(sb []byte)) []byte {
	start := make([]byte, superblockArea)
	sb := start[ext4SuperblockStart:]
	le := binary.LittleEndian
	le.PutUint32(sb[ext4BlocksLow:], 1<<18)
	le.PutUint32(sb[ext4LogBlockSize:], 2)
	le.PutUint16(sb[ext4Magic:], ext4MagicValue)
	le.PutUint16(sb[ext4State:], ext4StateValid)
	le.PutUint32(sb[ext4FeatureIncompat:], ext4Incompat64Bit)
	le.PutUint32(sb[ext4FeatureROCompat:], ext4ROCompatMetadata)
	sb[ext4ChecksumType] = ext4ChecksumCRC32C
	copy(sb[ext4UUID:], testUUIDBytes)
	if change != nil {
		change(sb)
	}
	le.PutUint32(sb[ext4Checksum:], ^crc32.Checksum(sb[:ext4Checksum], crc32.MakeTable(crc32.Castagnoli)))
	return start
}

// xfsStart returns the start of a clean xfs of 1 GiB after change.
func xfsStart(change func(sb []byte)) []byte {
	start := make([]byte, superblockArea)
	be := binary.BigEndian
	copy(start, xfsMagic)
	be.PutUint32(start[xfsBlockSize:], 4096)
	be.PutUint64(start[xfsDataBlocks:], 1<<18)
	copy(start[xfsUUID:], testUUIDBytes)
	be.PutUint16(start[xfsVersion:], 0xb4a5)
	if change != nil {
		change(start)
	}
	return start
}

// btrfsStart returns the start of a btrfs of 1 GiB, with a correct checksum
// after change.
func btrfsStart(change func(sb []byte)) []byte {
	start := make([]byte, superblockArea)
	sb := start[btrfsSuperblocks[0]:]
	le := binary.LittleEndian
	copy(sb[btrfsMagic:], btrfsMagicValue)
	le.PutUint64(sb[btrfsOwnAddress:], uint64(btrfsSuperblocks[0]))
	le.PutUint64(sb[btrfsTotalBytes:], 1<<30)
	copy(sb[btrfsUUID:], testUUIDBytes)
	if change != nil {
		change(sb)
	}
	le.PutUint32(sb, btrfsChecksum(sb))
	return start
}

func TestProbe(t *testing.T) {
	le, be := binary.LittleEndian, binary.BigEndian
	const gib = 1 << 30
	tests := []struct {
		name  string
		start []byte
		want  Info
		err   error
	}{
		{name: "an empty device is unformatted", err: ErrUnformatted},
		{name: "zeroes are unformatted", start: make([]byte, 1<<20), err: ErrUnformatted},
		{name: "a device that ends within the superblock is unformatted",
			start: ext4Start(nil)[:2000], err: ErrUnformatted},
		{name: "a clean ext4 needs no check", start: ext4Start(nil),
			want: Info{Type: Ext4, UUID: testUUID, SizeBytes: gib}},
		{name: "an ext4 with a journal to replay needs a check",
			start: ext4Start(func(sb []byte) { le.PutUint32(sb[ext4FeatureIncompat:], ext4IncompatRecover) }),
			want:  Info{Type: Ext4, UUID: testUUID, SizeBytes: gib, NeedsCheck: true}},
		{name: "an ext4 with recorded errors needs a check",
			start: ext4Start(func(sb []byte) { sb[ext4State] |= ext4StateErrors }),
			want:  Info{Type: Ext4, UUID: testUUID, SizeBytes: gib, NeedsCheck: true}},
		{name: "an ext4 with errors on record needs a check",
			start: ext4Start(func(sb []byte) { sb[ext4ErrorCount] = 1 }),
			want:  Info{Type: Ext4, UUID: testUUID, SizeBytes: gib, NeedsCheck: true}},
		{name: "an ext4 that was not unmounted cleanly needs a check",
			start: ext4Start(func(sb []byte) { sb[ext4State] &^= ext4StateValid }),
			want:  Info{Type: Ext4, UUID: testUUID, SizeBytes: gib, NeedsCheck: true}},
		{name: "an ext4 whose superblock checksum is wrong needs a check",
			start: func() []byte {
				start := ext4Start(nil)
				start[ext4SuperblockStart+ext4Checksum]++
				return start
			}(),
			want: Info{Type: Ext4, UUID: testUUID, SizeBytes: gib, NeedsCheck: true}},
		{name: "an ext4 of more than 2^32 blocks has its true size",
			start: ext4Start(func(sb []byte) { le.PutUint32(sb[ext4BlocksHigh:], 1) }),
			want:  Info{Type: Ext4, UUID: testUUID, SizeBytes: gib + 1<<44}},
		{name: "the high half of the size counts only with the 64bit feature",
			start: ext4Start(func(sb []byte) {
				le.PutUint32(sb[ext4FeatureIncompat:], 0)
				le.PutUint32(sb[ext4BlocksHigh:], 1)
			}),
			want: Info{Type: Ext4, UUID: testUUID, SizeBytes: gib}},
		{name: "an ext4 magic with an impossible block size is unformatted",
			start: ext4Start(func(sb []byte) { le.PutUint32(sb[ext4LogBlockSize:], 7) }), err: ErrUnformatted},
		{name: "a clean xfs needs no check", start: xfsStart(nil),
			want: Info{Type: XFS, UUID: testUUID, SizeBytes: gib}},
		{name: "an xfs whose mkfs did not finish is unformatted",
			start: xfsStart(func(sb []byte) { sb[xfsInProgress] = 1 }), err: ErrUnformatted},
		{name: "an xfs marked for repair needs a check",
			start: xfsStart(func(sb []byte) { be.PutUint32(sb[xfsFeatureIncompat:], xfsIncompatNeedsRepair) }),
			want:  Info{Type: XFS, UUID: testUUID, SizeBytes: gib, NeedsCheck: true}},
		{name: "an xfs of version 4 has no repair mark",
			start: xfsStart(func(sb []byte) {
				be.PutUint16(sb[xfsVersion:], 0xb4a4)
				be.PutUint32(sb[xfsFeatureIncompat:], xfsIncompatNeedsRepair)
			}),
			want: Info{Type: XFS, UUID: testUUID, SizeBytes: gib}},
		{name: "an xfs magic with an impossible block size is unformatted",
			start: xfsStart(func(sb []byte) { be.PutUint32(sb[xfsBlockSize:], 4097) }), err: ErrUnformatted},
		{name: "a btrfs needs no check", start: btrfsStart(nil),
			want: Info{Type: Btrfs, UUID: testUUID, SizeBytes: gib}},
		{name: "a btrfs whose superblock checksum is wrong needs a check",
			start: func() []byte {
				start := btrfsStart(nil)
				start[btrfsSuperblocks[0]]++
				return start
			}(),
			want: Info{Type: Btrfs, UUID: testUUID, SizeBytes: gib, NeedsCheck: true}},
		{name: "a checksum of another kind is left to the kernel",
			start: func() []byte {
				start := btrfsStart(func(sb []byte) { sb[btrfsChecksumType] = 2 })
				start[btrfsSuperblocks[0]]++
				return start
			}(),
			want: Info{Type: Btrfs, UUID: testUUID, SizeBytes: gib}},
		{name: "the start of a copy of a btrfs elsewhere is unformatted",
			start: btrfsStart(func(sb []byte) { le.PutUint64(sb[btrfsOwnAddress:], uint64(btrfsSuperblocks[1])) }), err: ErrUnformatted},
		{name: "what an ext4 left of a btrfs behind it does not count",
			start: func() []byte {
				start := btrfsStart(nil)
				copy(start, ext4Start(nil)[:4096])
				return start
			}(),
			want: Info{Type: Ext4, UUID: testUUID, SizeBytes: gib}},
		{name: "an xfs of an impossible size is unformatted",
			start: xfsStart(func(sb []byte) { be.PutUint64(sb[xfsDataBlocks:], 1<<60) }), err: ErrUnformatted},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Probe(image(t, tt.start))
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestProbeReportsWhetherExt4HasAJournal(t *testing.T) {
	for compat, want := range map[uint32]bool{0: false, 0x8 | 0x10 | 0x20: false, 0x4: true, 0x4 | 0x38 | 0x400: true} {
		start := ext4Start(func(sb []byte) { binary.LittleEndian.PutUint32(sb[ext4FeatureCompat:], compat) })
		if info, ok := (ext4{}).probe(start); !ok || info.Journal != want {
			t.Errorf("compatible features %#x: got %+v, %t", compat, info, ok)
		}
	}
}

func TestProbeOfMissingDeviceIsTheSystemsError(t *testing.T) {
	_, err := Probe(filepath.Join(t.TempDir(), "none"))
	if !errors.Is(err, os.ErrNotExist) || errors.Is(err, ErrUnformatted) {
		t.Errorf("got %v, want not exist", err)
	}
}

func TestProbeNeverReportsANonsenseSize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.SampledFrom([][]byte{ext4Start(nil), xfsStart(nil), btrfsStart(nil)}).Draw(t, "start")
		for range rapid.IntRange(0, 40).Draw(t, "changes") {
			at := rapid.OneOf(rapid.IntRange(0, 2047), rapid.IntRange(64<<10, superblockArea-1)).Draw(t, "at")
			start[at] = rapid.Byte().Draw(t, "byte")
		}
		for _, k := range kinds {
			if info, ok := k.probe(start); ok && (info.SizeBytes <= 0 || validateUUID(info.UUID) != nil) {
				t.Fatalf("got %+v", info)
			}
		}
	})
}

func image(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	must.Succeed(t, os.WriteFile(path, content, 0o600))
	return path
}

func TestWhatLiesBehindZeroesIsNamed(t *testing.T) {
	for name, content := range map[string][]byte{
		"nothing at all": nil, "zeroes": make([]byte, 4<<20), "less than a page": make([]byte, 512),
		"half a signature at the end": append(make([]byte, 64<<10+0x40), "_BHR"...),
		"noise": func() []byte {
			b := make([]byte, 4<<20)
			rand.NewChaCha8([32]byte{1}).Read(b[32<<10:])
			return b
		}(),
	} {
		if got, err := BehindZeroes(bytes.NewReader(content)); err != nil || got != "" {
			t.Errorf("%s: got %q, error %v, want nothing", name, got, err)
		}
	}
	for _, s := range signatures {
		b := make([]byte, 4<<20)
		copy(b[s.offset:], s.magic)
		if got, err := BehindZeroes(bytes.NewReader(b)); err != nil || got != s.name {
			t.Errorf("%s at %d: got %q, error %v", s.name, s.offset, got, err)
		}
		if s.offset < 4<<10 {
			t.Errorf("%s at %d is not behind the first page", s.name, s.offset)
		}
	}
	// Leftovers of a killed mkfs, and damaged superblocks, count too.
	broken := btrfsStart(func(sb []byte) { sb[0] ^= 1 })
	if got, err := BehindZeroes(bytes.NewReader(broken)); err != nil || got != "btrfs" {
		t.Errorf("a btrfs with a wrong checksum: got %q, error %v", got, err)
	}
}
