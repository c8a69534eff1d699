//go:build !kernel

package luks

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/carve-csi/carve/pkg/must"
)

const volume = "cvabcdefghijklmnopqrstuvwxyz"

// header is one copy of a header, with its JSON area, in cryptsetup's format.
type header struct {
	at               int64
	sequence         uint64
	label, subsystem string
	version          uint16
}

func (h header) bytes() []byte {
	b := make([]byte, 0x4000)
	copy(b, primaryMagic)
	if h.at > 0 {
		copy(b, secondaryMagic)
	}
	binary.BigEndian.PutUint16(b[atVersion:], max(h.version, 2))
	if h.version == 1 {
		binary.BigEndian.PutUint16(b[atVersion:], 1)
	}
	binary.BigEndian.PutUint64(b[atSize:], uint64(len(b)))
	binary.BigEndian.PutUint64(b[atSequence:], h.sequence)
	copy(b[atLabel:], h.label)
	copy(b[atAlgorithm:], checksumByWhich)
	copy(b[atSubsystem:], h.subsystem)
	binary.BigEndian.PutUint64(b[atOffset:], uint64(h.at))
	copy(b[binaryBytes:], `{"keyslots":{}}`)
	sum := sha256.Sum256(b)
	copy(b[atChecksum:], sum[:])
	return b
}

func pair(sequence uint64, label, subsystem string) []header {
	return []header{{sequence: sequence, label: label, subsystem: subsystem}, {at: 0x4000, sequence: sequence, label: label, subsystem: subsystem}}
}

func image(headers ...header) []byte {
	b := make([]byte, HeaderBytes)
	for _, h := range headers {
		copy(b[h.at:], h.bytes())
	}
	return b
}

func TestTheStateOfAVolumeIsInItsHeader(t *testing.T) {
	for name, test := range map[string]struct {
		image []byte
		spoil func([]byte)
		want  State
		err   error
	}{
		"nothing is there":                   {image: image(), want: Blank},
		"a header that was just made":        {image: image(pair(1, volume, subsystemMaking)...), want: Making},
		"one of a volume in use":             {image: image(pair(2, volume, subsystemMade)...), want: Made},
		"key slots without a header":         {image: image(), spoil: func(b []byte) { b[0x8000], b[0x9000], b[0x10000] = 1, 2, 3 }, want: Blank},
		"the first copy was not written":     {image: image(header{at: 0x4000, sequence: 1, label: volume, subsystem: subsystemMaking}), want: Making},
		"the second copy was not written":    {image: image(header{sequence: 1, label: volume, subsystem: subsystemMaking}), want: Making},
		"only one copy says that it is made": {image: image(header{sequence: 3, label: volume, subsystem: subsystemMade}, header{at: 0x4000, sequence: 2, label: volume, subsystem: subsystemMaking}), want: Made},
		"the newer copy is the second":       {image: image(header{sequence: 2, label: volume, subsystem: subsystemMaking}, header{at: 0x4000, sequence: 3, label: volume, subsystem: subsystemMade}), want: Made},
		"the newer copy is half written": {image: image(header{sequence: 3, label: volume, subsystem: subsystemMade}, header{at: 0x4000, sequence: 2, label: volume, subsystem: subsystemMaking}),
			spoil: func(b []byte) { b[binaryBytes+3] ^= 1 }, want: Making},
		"the first copy is overwritten":               {image: image(pair(2, volume, subsystemMade)...), spoil: func(b []byte) { copy(b, "something else") }, want: Made},
		"a second copy that lies far":                 {image: image(header{at: 0x400000, sequence: 2, label: volume, subsystem: subsystemMade}), want: Made},
		"the only write there was is half written":    {image: image(header{sequence: 1, label: volume, subsystem: subsystemMaking}), spoil: func(b []byte) { clear(b[2048:]) }, want: Making},
		"a half-written header in front of key slots": {image: image(header{sequence: 1, label: volume, subsystem: subsystemMaking}), spoil: func(b []byte) { clear(b[2048:0x4000]); b[0x8000] = 7 }, want: Making},
		"both copies are damaged":                     {image: image(pair(2, volume, subsystemMade)...), spoil: func(b []byte) { b[20], b[0x4000+20] = 9, 9 }, err: ErrDamaged},
		"something else is there":                     {image: image(), spoil: func(b []byte) { copy(b[1024:], "a superblock") }, err: ErrDamaged},
		"something else, and half a header":           {image: image(header{at: 0x4000, sequence: 1, label: volume, subsystem: subsystemMade}), spoil: func(b []byte) { b[0x4000+20] = 9 }, err: ErrDamaged},
		"a btrfs":                                     {image: image(), spoil: func(b []byte) { copy(b[0x10040:], "_BHRfS_M") }, err: ErrForeign},
		"a btrfs behind half a header":                {image: image(header{sequence: 1, label: volume, subsystem: subsystemMaking}), spoil: func(b []byte) { clear(b[2048:]); copy(b[0x10040:], "_BHRfS_M") }, want: Making},
		"the header of another volume":                {image: image(pair(2, "cvother", subsystemMade)...), err: ErrForeign},
		"one that was made by hand":                   {image: image(pair(2, volume, "")...), err: ErrForeign},
		"one of the first version":                    {image: image(header{version: 1}), err: ErrForeign},
		"a copy that says it lies elsewhere":          {image: image(header{at: 0x8000, sequence: 1, label: volume, subsystem: subsystemMade}), spoil: func(b []byte) { copy(b[0x4000:], b[0x8000:0xc000]); clear(b[0x8000:0xc000]) }, err: ErrDamaged},
		"a size that would fill the memory":           {image: image(pair(2, volume, subsystemMade)...), spoil: func(b []byte) { b[atSize], b[0x4000+atSize] = 0x7f, 0x7f }, err: ErrDamaged},
		"a checksum of an unexpected kind":            {image: image(pair(2, volume, subsystemMade)...), spoil: func(b []byte) { copy(b[atAlgorithm:], "crc32\x00"); copy(b[0x4000+atAlgorithm:], "crc32\x00") }, err: ErrDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			if test.spoil != nil {
				test.spoil(test.image)
			}
			device := filepath.Join(t.TempDir(), "device")
			must.Succeed(t, os.WriteFile(device, test.image, 0o600))
			got, err := Inspect(device, volume)
			if !errors.Is(err, test.err) || err == nil && got != test.want {
				t.Errorf("%v, error %v; want %v, %v", got, err, test.want, test.err)
			}
		})
	}
}

func TestADeviceThatCannotBeReadIsNotBlank(t *testing.T) {
	if state, err := Inspect(filepath.Join(t.TempDir(), "none"), volume); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, error %v", state, err)
	}
	if state, err := inspect(bytes.NewReader(image()[:1<<20]), volume); err == nil {
		t.Errorf("half a header is %v", state)
	}
}

// Damage to one copy, wherever it is, must never make a volume with data look
// blank.
func TestNoByteThatChangesMakesAVolumeBlank(t *testing.T) {
	good := image(pair(7, volume, subsystemMade)...)[:secondaries[len(secondaries)-1]+binaryBytes]
	rapid.Check(t, func(t *rapid.T) {
		b := bytes.Clone(good)
		copyAt := rapid.SampledFrom([]int{0, 0x4000}).Draw(t, "copy")
		for range rapid.IntRange(1, 8).Draw(t, "bytes") {
			b[copyAt+rapid.IntRange(0, 0x4000-1).Draw(t, "at")] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
		}
		if state, err := inspect(bytes.NewReader(b), volume); err == nil && state != Made {
			t.Errorf("%v", state)
		}
	})
}
