package blockdev

import "testing"

func TestWhatLiesOnADeviceIsNamed(t *testing.T) {
	root := tree(t, map[string]string{
		"sys/devices/virtual/block/dm-3/dev":           "253:3",
		"sys/devices/virtual/block/dm-3/holders/dm-7":  "-> ../../dm-7",
		"sys/devices/virtual/block/dm-3/holders/md127": "-> ../../md127",
		"sys/devices/virtual/block/dm-7/dm/name":       "theirs-data",
		"sys/devices/virtual/block/md127/dev":          "9:127",
		"sys/dev/block/253:3":                          "-> ../../devices/virtual/block/dm-3",
	})
	if got, want := holders(root, Number{253, 3}), " by dm-7 (theirs-data), md127"; got != want {
		t.Errorf("of a device on which two lie: %q, want %q", got, want)
	}
	for _, d := range []Number{{253, 7}, {253, 9}} {
		if got := holders(root, d); got != "" {
			t.Errorf("of a device on which none lies: %q", got)
		}
	}
}
