package lvm

import (
	"bytes"
	"errors"
	"os"
	"testing"
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
	// Wherever it is spoilt, an error or another reading comes of it, and no panic.
	for i := range min(len(disk), 8192) {
		spoilt := bytes.Clone(disk)
		spoilt[i] ^= 0xff
		_, _ = parseLabel(bytes.NewReader(spoilt))
	}
	if _, err := parseLabel(bytes.NewReader(make([]byte, 8192))); !errors.Is(err, ErrNotFound) {
		t.Errorf("an empty disk: error %v", err)
	}
}
