package main

import (
	"bytes"
	"fmt"
	"testing"
)

func TestLinesBeginWithThePackagesNameHoweverTheyAreWritten(t *testing.T) {
	var out bytes.Buffer
	p := &prefixer{prefix: "lvm: ", out: &out}
	for _, part := range []string{"one", " line\nand", "", " a second\n\nrest"} {
		if n, err := fmt.Fprint(p, part); n != len(part) || err != nil {
			t.Errorf("Write(%q): %d, %v", part, n, err)
		}
	}
	if want := "lvm: one line\nlvm: and a second\nlvm: \n"; out.String() != want {
		t.Errorf("want %q, got %q", want, out.String())
	}
}
