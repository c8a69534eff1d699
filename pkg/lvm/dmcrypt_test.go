package lvm

import (
	"bytes"
	"encoding/hex"
	"regexp"
	"testing"

	"github.com/carve-csi/carve/pkg/devmapper"
	"github.com/carve-csi/carve/pkg/must"
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
		must.Succeed(t, drawKey(key))
		if !regexp.MustCompile(`^[0-9a-f]{128}$`).Match(key) || seen[string(key)] || bytes.Equal(key[:keySize], key[keySize:]) {
			t.Errorf("key %s", key)
		}
		seen[string(key)] = true
	}
}

func TestMemoryForAKeyHoldsARequest(t *testing.T) {
	s := must.Get(newSecret())(t)
	if free := len(s.memory) - devmapper.ParamsOffset; free < 2*keySize+200 {
		t.Errorf("only %d bytes for the parameters", free)
	}
	s.wipe()
}
