package blockdev

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

func TestAnArraysMemberIsKnownByTheEndOfIt(t *testing.T) {
	const size = 1<<20 + 3<<10
	for name, test := range map[string]struct {
		at   int64
		want bool
	}{
		"format 0.90":           {15 * 64 << 10, true},
		"format 1.0":            {1<<20 - 8<<10, true},
		"format 1.2, elsewhere": {4 << 10, false},
	} {
		b := make([]byte, size)
		binary.LittleEndian.PutUint32(b[test.at:], arrayMagic)
		if got := must.Get(endsAsArrayMember(bytes.NewReader(b), size))(t); got != test.want {
			t.Errorf("%s: member %v, want %v", name, got, test.want)
		}
	}
	if got := must.Get(endsAsArrayMember(bytes.NewReader(nil), 0))(t); got {
		t.Error("nothing is a member of an array")
	}
}
