package mount

import (
	"slices"
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
		name       string
		options    []string
		attributes int
		parameters []parameter
	}{
		{name: "nothing is nothing"},
		{name: "attributes of the layer and parameters of the file system are separated",
			options:    []string{"noatime", "commit=30", "nosuid", "data=writeback", "nobarrier"},
			attributes: unix.MOUNT_ATTR_NOATIME | unix.MOUNT_ATTR_NOSUID,
			parameters: []parameter{{key: "commit", value: "30"}, {key: "data", value: "writeback"}, {key: "nobarrier", flag: true}}},
		{name: "read-only are both, the layer and the file system", options: []string{"ro"},
			attributes: unix.MOUNT_ATTR_RDONLY, parameters: []parameter{{key: "ro", flag: true}}},
		{name: "later attributes win", options: []string{"ro", "rw", "suid", "nosuid"}, attributes: unix.MOUNT_ATTR_NOSUID,
			parameters: []parameter{{key: "ro", flag: true}, {key: "rw", flag: true}}},
		{name: "relatime wins over an earlier noatime", options: []string{"noatime", "relatime"}},
		{name: "noatime wins over an earlier strictatime", options: []string{"strictatime", "noatime"}, attributes: unix.MOUNT_ATTR_NOATIME},
		{name: "atime takes noatime back", options: []string{"noatime", "atime"}},
		{name: "words for what is usual reach no file system", options: []string{"defaults", "exec", "dev", "norelatime"}},
		{name: "a file system gets a value without the quotes that keep its commas together",
			options:    []string{`context="system_u:object_r:container_file_t:s0:c1,c2"`},
			parameters: []parameter{{key: "context", value: "system_u:object_r:container_file_t:s0:c1,c2"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			attributes, parameters := split(tt.options)
			if attributes != tt.attributes || !slices.Equal(parameters, tt.parameters) {
				t.Errorf("got %#x, %+v, want %#x, %+v", attributes, parameters, tt.attributes, tt.parameters)
			}
		})
	}
}
