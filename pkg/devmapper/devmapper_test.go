//go:build !kernel

package devmapper

import (
	"encoding/binary"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

func TestARequestIsLaidOutAsTheKernelsIs(t *testing.T) {
	var r request
	for _, c := range []struct {
		what      string
		got, want uintptr
	}{
		{"size of dm_ioctl", unsafe.Sizeof(r), 312},
		{"dev", unsafe.Offsetof(r.dev), 40},
		{"name", unsafe.Offsetof(r.name), 48},
		{"uuid", unsafe.Offsetof(r.uuid), 176},
		{"size of dm_target_spec", unsafe.Sizeof(spec{}), 40},
		{"target_type", unsafe.Offsetof(spec{}.kind), 24},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", c.what, c.got, c.want)
		}
	}
	if size := listDevices >> 16 & 0x3fff; size != headerSize {
		t.Errorf("the commands say that a request has %d bytes, want %d", size, headerSize)
	}
}

// entry returns a struct dm_name_list.
func entry(dev uint64, last bool, name string) []byte {
	b := make([]byte, (12+len(name)+1+7)&^7)
	binary.NativeEndian.PutUint64(b, dev)
	if !last {
		binary.NativeEndian.PutUint32(b[8:], uint32(len(b)))
	}
	copy(b[12:], name)
	return b
}

func TestDevicesAreReadFromTheKernelsList(t *testing.T) {
	two := slices.Concat(entry(0xfd00, false, "carve-cvx"), entry(0xfd01, true, "carve.crypt.cvx"))
	far := slices.Clone(two)
	binary.NativeEndian.PutUint32(far[8:], 1<<20)
	for name, c := range map[string]struct {
		data   []byte
		want   []Entry
		broken bool
	}{
		"there is none":                {make([]byte, 16), nil, false},
		"one":                          {entry(0xfd00, true, "a"), []Entry{{"a", 253, 0}}, false},
		"one after the other":          {two, []Entry{{"carve-cvx", 253, 0}, {"carve.crypt.cvx", 253, 1}}, false},
		"nothing was answered":         {nil, nil, true},
		"the next is missing":          {entry(0xfd00, false, "a"), nil, true},
		"an offset that leads nowhere": {far, nil, true},
	} {
		got, err := parseList(c.data)
		if (err != nil) != c.broken || !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, error %v, want %v, error %t", name, got, err, c.want, c.broken)
		}
	}
}

// answer lays out targets like the kernel.
func answer(targets []Target) []byte {
	var b []byte
	for _, t := range targets {
		length := (specSize + len(t.Params) + 1 + 7) &^ 7
		s := spec{start: uint64(t.Start), length: uint64(t.Length), next: uint32(len(b) + length)}
		copy(s.kind[:], t.Kind)
		one := make([]byte, length)
		copy(one, unsafe.Slice((*byte)(unsafe.Pointer(&s)), specSize))
		copy(one[specSize:], t.Params)
		b = append(b, one...)
	}
	return b
}

func TestTablesAreReadAsTheKernelLaysThemOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Target {
			return Target{
				Start: rapid.Int64Min(0).Draw(t, "start"), Length: rapid.Int64Min(0).Draw(t, "length"),
				Kind: rapid.StringMatching(`[a-z-]{1,15}`).Draw(t, "kind"), Params: rapid.StringMatching(`[ -~]{0,60}`).Draw(t, "params"),
			}
		}), 1, 5).Draw(t, "targets")
		data := answer(want)
		got, err := parseTable(data, len(want))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, error %v, want %+v", got, err, want)
		}
		if got, err := parseTable(data, len(want)+1); err == nil {
			t.Fatalf("one target more than there are: %+v", got)
		}
		// Truncated or corrupt data never causes a panic.
		at := rapid.IntRange(0, len(data)-1).Draw(t, "at")
		data[at] ^= rapid.Byte().Draw(t, "noise")
		_, _ = parseTable(data[:rapid.IntRange(0, len(data)).Draw(t, "cut")], len(want))
	})
}

func TestWhatDoesNotFitIsRefusedBeforeTheKernelIsAsked(t *testing.T) {
	long := strings.Repeat("n", MaxName+1)
	memory := buffer(ParamsOffset + 8)
	errs := map[string]error{"a UUID": Create("device", strings.Repeat("u", 129))}
	_, errs["a name"] = Status(long)
	_, errs["the name of a table's device"] = Table(long)
	_, errs["a kind of target"] = ProvideTarget(long)
	_, errs["parameters"] = LoadSecret("device", "crypt", 1, memory, 9)
	_, errs["a kind of target in a table"] = LoadSecret("device", "sixteen-letters-", 1, memory, 8)
	for what, err := range errs {
		if err == nil {
			t.Errorf("%s that is too long was taken", what)
		}
	}
}
