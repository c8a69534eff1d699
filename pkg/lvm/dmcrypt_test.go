package lvm

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"regexp"
	"slices"
	"testing"
)

func TestAKeyIsSpelledOutInThePlaceItIsDrawnTo(t *testing.T) {
	raw := make([]byte, keySize)
	for i := range raw {
		raw[i] = byte(7*i + 3)
	}
	key := make([]byte, 2*keySize)
	copy(key[keySize:], raw)
	spell(key)
	if want := hex.EncodeToString(raw); string(key) != want {
		t.Errorf("got %s, want %s", key, want)
	}
}

func TestEachKeyIsAnother(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		key := make([]byte, 2*keySize)
		if err := drawKey(key); err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`^[0-9a-f]{128}$`).Match(key) || seen[string(key)] || bytes.Equal(key[:keySize], key[keySize:]) {
			t.Errorf("key %s", key)
		}
		seen[string(key)] = true
	}
}

func TestMemoryForAKeyHoldsARequest(t *testing.T) {
	s, err := newSecret()
	if err != nil {
		t.Fatal(err)
	}
	if free := len(s.memory) - dmTarget1; free < 2*keySize+200 {
		t.Errorf("only %d bytes for the parameters", free)
	}
	s.wipe()
}

func TestNamesOfDevicesAreReadFromTheKernelsList(t *testing.T) {
	entry := func(dev uint64, last bool, name string) []byte {
		b := make([]byte, (12+len(name)+1+7)&^7)
		binary.NativeEndian.PutUint64(b, dev)
		if !last {
			binary.NativeEndian.PutUint32(b[8:], uint32(len(b)))
		}
		copy(b[12:], name)
		return b
	}
	for _, c := range []struct {
		data []byte
		want []string
	}{
		{make([]byte, 16), nil},
		{entry(0xfd00, true, "a"), []string{"a"}},
		{slices.Concat(entry(0xfd00, false, "carve-cvx"), entry(0xfd01, true, "carve.crypt.cvx")), []string{"carve-cvx", "carve.crypt.cvx"}},
	} {
		if got, err := parseNames(c.data); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%v: got %q, error %v, want %q", c.data, got, err, c.want)
		}
	}
	if got, err := parseNames(entry(0xfd00, false, "a")); err == nil {
		t.Errorf("a list that is cut off: %q", got)
	}
}
