package main

import "testing"

func TestTheCommandLineSaysWhatKindOfMachineItIs(t *testing.T) {
	for content, want := range map[string]commandLine{
		"console=ttyS0 quiet\n":                             {},
		"mem=256M carve.probe\n":                            {probe: true},
		"a=b carve.folder=/run/m carve.modules=/uml/7 ro\n": {folder: "/run/m", modules: "/uml/7"},
	} {
		if got := parseCommandLine(content); got != want || got.userMode() != (want.folder != "") {
			t.Errorf("%q: got %+v, want %+v", content, got, want)
		}
	}
}
