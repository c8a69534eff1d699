//go:build !kernel

package cgroup

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func someMax(t *rapid.T) Max {
	limit := func(label string, most uint64) uint64 {
		return rapid.OneOf(rapid.Just(uint64(0)), rapid.Uint64Range(1, most)).Draw(t, label)
	}
	return Max{limit("rbps", 1<<63-1), limit("wbps", 1<<63-1), limit("riops", 1<<32-2), limit("wiops", 1<<32-2)}
}

// The kernel lists all limited devices, in any order.
func TestWhatIsWrittenIsWhatIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.MapOf(rapid.StringMatching(`[1-9][0-9]{0,3}:[0-9]{1,6}`), rapid.Custom(someMax)).Draw(t, "limits")
		var text strings.Builder
		for device, m := range want {
			line := m.line(device)
			if strings.ContainsRune(line, '\n') || strings.Count(line, "=") != 4 {
				t.Fatalf("%q is not one line with all four limits", line)
			}
			text.WriteString(line + "\n")
		}
		got, err := parse(text.String())
		if err != nil || len(got) != len(want) {
			t.Fatalf("%q reads as %v, error %v, want %v", text.String(), got, err, want)
		}
		for device, m := range want {
			if got[device] != m {
				t.Fatalf("%s: %+v, want %+v", device, got[device], m)
			}
		}
	})
}

func TestLinesOfIOMax(t *testing.T) {
	m := Max{ReadBPS: 1 << 20, WriteIOPS: 100}
	if got, want := m.line("253:4"), "253:4 rbps=1048576 wbps=max riops=max wiops=100"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	got, err := parse("8:0 rbps=max wbps=max riops=max wiops=max\n253:4 rbps=1 later=x wiops=7 wbps=max\n\n")
	if err != nil || len(got) != 2 || got["8:0"] != (Max{}) || got["253:4"] != (Max{ReadBPS: 1, WriteIOPS: 7}) {
		t.Errorf("%+v, error %v", got, err)
	}
	for _, bad := range []string{"8:0 rbps", "8:0 rbps=", "8:0 wiops=-1", "8:0 rbps=1.5"} {
		if got, err := parse(bad); err == nil {
			t.Errorf("%q became %v", bad, got)
		}
	}
}
