package main

import (
	"os"
	"testing"
)

func TestAFolderIsRemovedWithItsRunOrByTheNext(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	used, remove, err := makeFolder()
	if err != nil {
		t.Fatal(err)
	}
	abandoned, err := os.MkdirTemp("", folderPattern)
	if err != nil {
		t.Fatal(err)
	}
	_, removeOther, err := makeFolder()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(used); err != nil {
		t.Errorf("the folder of a run that goes on: %v", err)
	}
	if _, err := os.Stat(abandoned); err == nil {
		t.Error("the folder of a run that was killed is still there")
	}
	for _, one := range []func() error{remove, removeOther} {
		if err := one(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(used); err == nil {
		t.Error("the folder of a run that has ended is still there")
	}
}
