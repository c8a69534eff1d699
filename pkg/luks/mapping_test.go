//go:build !kernel

package luks

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
)

func TestTheKernelsListOfDevicesIsRead(t *testing.T) {
	entry := func(device uint64, next uint32, name string) []byte {
		b := binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint64(nil, device), next)
		return append(b, (name + "\x00\x00\x00\x00")[:(len(name)/4+1)*4]...)
	}
	two := slices.Concat(entry(253, 20, "first"), entry(254, 0, "second"))
	for name, test := range map[string]struct {
		data []byte
		want []string
	}{
		"there is none":                 {entry(0, 0, ""), nil},
		"nothing was answered":          {nil, nil},
		"one after the other":           {two, []string{"first", "second"}},
		"an offset that leads nowhere":  {entry(253, 1<<20, "first"), []string{"first"}},
		"a name that is cut off by end": {two[:20+12+3], []string{"first", "sec"}},
	} {
		if got := names(test.data); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestANameThatNoDeviceCanHaveHasNoMapping(t *testing.T) {
	if _, there, err := New("cryptsetup", Usual).Mapping(strings.Repeat("v", 128)); there || err != nil {
		t.Errorf("there %t, error %v", there, err)
	}
}
