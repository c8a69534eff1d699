package ondisk

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/blockdev"
)

func TestLabelsAreReadFromADisk(t *testing.T) {
	disk, err := os.ReadFile("testdata/pv.bin")
	if err != nil {
		t.Fatal(err)
	}
	l, err := parseLabel(bytes.NewReader(disk))
	if err != nil || l.Group == "" || l.Orphan || len(l.UUID) != 38 || l.KnownSize <= 0 {
		t.Errorf("label %+v, error %v", l, err)
	}
	// Corruption gives an error or another reading, and never a panic.
	for i := range min(len(disk), 8192) {
		spoilt := bytes.Clone(disk)
		spoilt[i] ^= 0xff
		_, _ = parseLabel(bytes.NewReader(spoilt))
	}
	if _, err := parseLabel(bytes.NewReader(make([]byte, 8192))); !errors.Is(err, blockdev.ErrNotFound) {
		t.Errorf("an empty disk: error %v", err)
	}
}

func TestPhysicalVolumesGetDifferentWellFormedUUIDs(t *testing.T) {
	a, b := NewUUID(), NewUUID()
	if a == b || len(a) != 38 || strings.Count(a, "-") != 6 || a[6] != '-' || a[31] != '-' {
		t.Errorf("%q, %q", a, b)
	}
}
