package lvm

import (
	"slices"
	"testing"
)

func TestSignaturesAreReadFromWipefs(t *testing.T) {
	got, err := parseWipefs([]byte(`{"signatures": [
		{"device":"vdb", "offset":"0x200", "type":"gpt", "uuid":null, "label":null},
		{"device":"vdb", "offset":"0xfffe00", "type":"gpt", "uuid":null, "label":null},
		{"device":"vdb", "offset":"0x1fe", "type":"PMBR", "uuid":null, "label":null}]}`))
	if err != nil || !slices.Equal(got, []string{"gpt", "PMBR"}) {
		t.Errorf("%q, error %v", got, err)
	}
	if got, err := parseWipefs([]byte("\n")); err != nil || got != nil {
		t.Errorf("%q, error %v", got, err)
	}
	if _, err := parseWipefs([]byte("device offset type")); err == nil {
		t.Error("what is no JSON was understood")
	}
}

func TestMetadataAreasFitTheirDevices(t *testing.T) {
	for _, c := range []struct{ device, want int64 }{
		{64 << 20, 1 << 20}, {1 << 30, 4 << 20}, {1<<30 + 255<<20, 4 << 20}, {16 << 30, 64 << 20}, {16 << 40, 64 << 20},
	} {
		if got := MetadataSize(c.device); got != c.want {
			t.Errorf("%d bytes: metadata of %d, want %d", c.device, got, c.want)
		}
	}
}
