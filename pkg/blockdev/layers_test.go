package blockdev

import (
	"errors"
	"slices"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

// stack has a partition on sda, a logical volume dm-0 on that, a loop device with a partition
// over the volume, an array on the latter, and a bcache device on the array; and a loop device
// over a regular file.
func stack(t *testing.T) string {
	return tree(t, map[string]string{
		"sys/devices/pci0/block/sda/dev":                    "8:0",
		"sys/devices/pci0/block/sda/sda1/dev":               "8:1",
		"sys/devices/pci0/block/sda/sda1/partition":         "1",
		"sys/devices/virtual/block/dm-0/dev":                "253:0",
		"sys/devices/virtual/block/dm-0/dm/name":            "carve-v",
		"sys/devices/virtual/block/dm-0/dm/uuid":            "LVM-abc",
		"sys/devices/virtual/block/dm-0/slaves/sda1":        "-> ../../../../pci0/block/sda/sda1",
		"sys/devices/virtual/block/loop3/dev":               "7:3",
		"sys/devices/virtual/block/loop3/loop3p1/dev":       "259:7",
		"sys/devices/virtual/block/loop3/loop3p1/partition": "1",
		"sys/devices/virtual/block/md127/dev":               "9:127",
		"sys/devices/virtual/block/md127/slaves/loop3p1":    "-> ../../loop3/loop3p1",
		"sys/devices/virtual/block/bcache0/dev":             "252:0",
		"sys/devices/virtual/block/bcache0/slaves/md127":    "-> ../../md127",
		"sys/devices/virtual/block/loop4/dev":               "7:4",
		"sys/devices/virtual/block/dm-1/dev":                "253:1",
		"sys/devices/virtual/block/dm-1/slaves/gone":        "-> ../../gone",
		"sys/dev/block/8:0":                                 "-> ../../devices/pci0/block/sda",
		"sys/dev/block/8:1":                                 "-> ../../devices/pci0/block/sda/sda1",
		"sys/dev/block/253:0":                               "-> ../../devices/virtual/block/dm-0",
		"sys/dev/block/253:1":                               "-> ../../devices/virtual/block/dm-1",
		"sys/dev/block/7:3":                                 "-> ../../devices/virtual/block/loop3",
		"sys/dev/block/259:7":                               "-> ../../devices/virtual/block/loop3/loop3p1",
		"sys/dev/block/9:127":                               "-> ../../devices/virtual/block/md127",
		"sys/dev/block/252:0":                               "-> ../../devices/virtual/block/bcache0",
		"sys/dev/block/7:4":                                 "-> ../../devices/virtual/block/loop4",
	})
}

func TestAllThatADeviceLiesOnIsFound(t *testing.T) {
	root := stack(t)
	loop := func(name string, _ Number) (Number, error) {
		if name == "loop3" {
			return Number{253, 0}, nil
		}
		return Number{}, nil
	}
	for n, want := range map[Number][]string{
		{8, 0}:   {"sda"},
		{8, 1}:   {"sda1", "sda"},
		{253, 0}: {"dm-0", "sda1", "sda"},
		{7, 3}:   {"loop3", "dm-0", "sda1", "sda"},
		{252, 0}: {"bcache0", "md127", "loop3p1", "loop3", "dm-0", "sda1", "sda"},
		{7, 4}:   {"loop4"},
	} {
		var names []string
		for _, l := range must.Get(layersOf(root, n, loop))(t) {
			names = append(names, l.Name)
			if over := l.Name == "loop3"; l.OverDevice != over {
				t.Errorf("%v: %s lies over a device's node: %v, want %v", n, l.Name, l.OverDevice, over)
			}
			if volume := l.Name == "dm-0"; l.Mapping.LogicalVolume != volume {
				t.Errorf("%v: %s is a logical volume: %v, want %v", n, l.Name, l.Mapping.LogicalVolume, volume)
			}
		}
		if !slices.Equal(names, want) {
			t.Errorf("%v lies on %q, want %q", n, names, want)
		}
	}
}

func TestWhatCannotBeReadOfLayersIsAnError(t *testing.T) {
	root := stack(t)
	unknown := errors.New("unknown")
	fails := func(string, Number) (Number, error) { return Number{}, unknown }
	if _, err := layersOf(root, Number{252, 0}, fails); !errors.Is(err, unknown) {
		t.Errorf("the file of a loop device is not known: %v, want %v", err, unknown)
	}
	for _, n := range []Number{{253, 1}, {253, 9}} {
		if all, err := layersOf(root, n, fails); err == nil {
			t.Errorf("%v lies on what is gone: %v, want an error", n, all)
		}
	}
}
