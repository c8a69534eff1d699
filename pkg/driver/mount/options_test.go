package mount

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestAddUp(t *testing.T) {
	for lines, want := range map[string]int64{
		"write_errs 1\nread_errs 2\nflush_errs 0\ncorruption_errs 40\ngeneration_errs 0\n": 43,
		"invalid\n": 0,
		"":          0,
	} {
		if got, err := addUp(lines); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", lines, got, err, want)
		}
	}
	if got, err := addUp("write_errs many\n"); err == nil {
		t.Errorf("got %d, want an error", got)
	}
}

func TestSplit(t *testing.T) {
	tests := []struct {
		name    string
		options []string
		flags   uintptr
		data    string
	}{
		{name: "nothing is nothing"},
		{name: "flags and data are told apart", options: []string{"noatime", "commit=30", "ro", "data=writeback"},
			flags: unix.MS_NOATIME | unix.MS_RDONLY, data: "commit=30,data=writeback"},
		{name: "later flags win", options: []string{"ro", "rw", "suid", "nosuid"}, flags: unix.MS_NOSUID},
		{name: "words for the usual case reach nobody", options: []string{"defaults", "rw", "exec", "dev", "async"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			flags, data := split(tt.options)
			if flags != tt.flags || data != tt.data {
				t.Errorf("got %#x, %q, want %#x, %q", flags, data, tt.flags, tt.data)
			}
		})
	}
}
