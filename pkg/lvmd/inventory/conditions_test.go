//go:build !kernel

package inventory

import (
	"slices"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/must"
)

func TestEveryLetterOfTheAttributesMakesItsCondition(t *testing.T) {
	const ordinary = "-wi-a-----"
	for position, letters := range []map[byte]string{
		{
			'-': "", 'C': "", 'm': "", 'M': "", 'o': "", 'g': "", 'r': "", 'R': "", 's': "", 'p': "", 'v': "", 'i': "", 'I': "", 'l': "",
			'V': "", 't': "", 'T': "", 'd': "", 'D': "", 'e': "", 'O': "LVMBusy", 'S': "LVMBusy", 'c': "LVMBusy",
		},
		{'w': "", 'r': "ReadOnly", 'R': "ReadOnly"},
		{'a': "", 'c': "", 'i': "", 'l': "", 'n': "", 'A': "", 'C': "", 'I': "", 'L': "", 'N': ""},
		{'-': "", 'm': ""},
		{
			// The device is asked instead.
			'-': "", 'a': "", 's': "", 'd': "", 'i': "", 'h': "",
			'I': "Failed", 'S': "Failed", 'm': "LVMBusy", 'M': "LVMBusy",
			'c': "LVMBusy", 'C': "LVMBusy", 'X': "LVMBusy",
		},
		{'-': "", 'o': "", 'X': ""},
		{'-': "", 'C': "", 'm': "", 'r': "", 's': "", 't': "", 'v': "", 'u': "LVMBusy"},
		{'-': "", 'z': ""},
		{
			'-': "", 'w': "", 'p': "MissingDevice", 'r': "LVMBusy", 'm': "LVMBusy", 's': "LVMBusy", 'R': "LVMBusy",
			'F': "Failed", 'D': "PoolFull", 'M': "PoolReadOnly", 'E': "LVMBusy", 'X': "LVMBusy",
		},
		{'-': "", 'k': ""},
	} {
		for letter, want := range letters {
			text := []byte(ordinary)
			text[position] = letter
			if got := conditionsOfAttr(t, string(text), layout.Layout{}, lvm.Device{}, true); !slices.Equal(got, wanted(want)) {
				t.Errorf("%s, character %d is %c: conditions %q, want %q", text, position+1, letter, got, want)
			}
		}
	}
}

func TestWhatTheKernelSaysOfAVolumeCounts(t *testing.T) {
	raid := layout.Layout{Type: layout.RAID1, Mirrors: 1}
	for _, c := range []struct {
		name, attr string
		layout     layout.Layout
		device     lvm.Device
		active     bool
		want       []string
	}{
		{"suspended when LVM looked, not now", "-wi-s-----", layout.Layout{}, lvm.Device{}, true, nil},
		{"suspended now", "-wi-a-----", layout.Layout{}, lvm.Device{Suspended: true}, true, []string{"Suspended"}},
		{"an invalid snapshot that is suspended", "swi-S-s---", layout.Layout{}, lvm.Device{Suspended: true}, true, []string{"Suspended", "Failed"}},
		{"no device", "-wi-a-----", layout.Layout{}, lvm.Device{}, false, []string{"Inactive"}},
		{"a device without a table", "-wi-d-----", layout.Layout{}, lvm.Device{}, false, []string{"Inactive"}},
		{"RAID that wanted a refresh", "rwi-a-r-r-", raid, lvm.Device{}, true, nil},
		{"RAID with mismatches", "rwi-a-r-m-", raid, lvm.Device{}, true, nil},
		{"RAID without a device", "rwi-a-r-p-", raid, lvm.Device{}, true, []string{"MissingDevice"}},
		{"RAID that is reshaped", "rwi-a-r-s-", raid, lvm.Device{}, true, []string{"LVMBusy"}},
	} {
		if got := conditionsOfAttr(t, c.attr, c.layout, c.device, c.active); !slices.Equal(got, c.want) {
			t.Errorf("%s: conditions %q, want %q", c.name, got, c.want)
		}
	}
}

func TestConditionsOfOneTypeAreJoined(t *testing.T) {
	got := oneOfEachType([]*lvmdv1.Condition{{Type: "LVMBusy", Message: "a"}, {Type: "ReadOnly", Message: "b"}, {Type: "LVMBusy", Message: "c"}})
	if want := []*lvmdv1.Condition{{Type: "LVMBusy", Message: "a; c"}, {Type: "ReadOnly", Message: "b"}}; !sameConditions(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func wanted(kind string) []string {
	if kind == "" {
		return nil
	}
	return []string{kind}
}

func conditionsOfAttr(t *testing.T, attr string, layout layout.Layout, d lvm.Device, active bool) (kinds []string) {
	t.Helper()
	a := must.Get(lvm.ParseAttr(attr))(t)
	for _, c := range conditionsOf(&lvm.Volume{Attr: a, Layout: layout}, d, active) {
		if c.GetMessage() == "" {
			t.Errorf("%s: condition %s says nothing", attr, c.GetType())
		}
		kinds = append(kinds, c.GetType())
	}
	return kinds
}
