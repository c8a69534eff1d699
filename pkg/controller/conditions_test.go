package controller

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/waittest"
)

// withoutEvent are ordinary: a new RAID volume is synchronised.
var withoutEvent = []string{conditions.OutOfSync}

// Each condition lasts two passes, as transient ones are reported then; classes have it with
// and without free space.
func TestEveryConditionHasAnEvent(t *testing.T) {
	w := newAuditing(t, "")
	var ofClass, ofVolume []string
	for _, c := range conditions.All {
		if slices.Contains(c.Of, conditions.Class) {
			ofClass = append(ofClass, c.Type)
		}
		if slices.Contains(c.Of, conditions.Volume) {
			ofVolume = append(ofVolume, c.Type)
		}
		if !slices.Contains(c.Of, conditions.Class) && !slices.Contains(c.Of, conditions.Volume) {
			t.Errorf("%s: neither a class nor a volume has it", c.Type)
		}
	}
	check := func(what string, types []string, events []string) {
		t.Helper()
		for _, kind := range types {
			n := 0
			for _, e := range events {
				if strings.HasPrefix(e, "Warning ") && strings.Contains(e, "why "+kind+" ") {
					n++
				}
			}
			want := 1
			if slices.Contains(withoutEvent, kind) {
				want = 0
			}
			if n != want {
				t.Errorf("%s: %d Events for %s, want %d: %q", what, n, kind, want, events)
			}
		}
	}
	for what, bytes := range map[string]int64{"a class with space": gib, "a class without": 0} {
		w.reportClass(0, nil)
		w.drain()
		w.pass()
		w.reportClass(bytes, with(ofClass))
		w.drain()
		w.pass()
		check(what, ofClass, w.drain())
		w.pass()
		wantEvents(t, what+": the same", slices.DeleteFunc(w.drain(), func(e string) bool { return !strings.Contains(e, "evice class") }), 0)
	}
	events := w.setHealth(with(ofVolume), nil)
	check("a volume", ofVolume, append(events, w.setHealth(with(ofVolume), nil)...))
}

// with makes messages none of which contains another.
func with(types []string) []*lvmdv1.Condition {
	list := of(types...)
	for _, c := range list {
		c.Message += " ."
	}
	return list
}

func (w *auditing) reportClass(bytes int64, conditions []*lvmdv1.Condition) {
	w.t.Helper()
	w.node.SetClass("local", bytes, conditions...)
	waittest.Until(w.t, "the controller knows", func() bool {
		view, known := w.c.core.Fleet.View("n1")
		return known && view.Classes["local"].GetTotalBytes() == bytes &&
			slices.EqualFunc(view.Classes["local"].GetConditions(), conditions, func(a, b *lvmdv1.Condition) bool { return proto.Equal(a, b) })
	})
}

func TestAClassWhoseConditionsChange(t *testing.T) {
	w := newAuditing(t, "")
	step := func(what string, bytes int64, conditions []*lvmdv1.Condition, want ...string) {
		t.Helper()
		w.reportClass(bytes, conditions)
		w.drain()
		w.pass()
		got := slices.DeleteFunc(w.drain(), func(e string) bool { return !strings.Contains(e, "evice class") })
		if !slices.Equal(got, want) {
			t.Errorf("%s: Events\n%q, want\n%q", what, got, want)
		}
	}
	full := "Warning DeviceClassUnhealthy device class local: MetadataFull: why MetadataFull"
	step("the metadata is full", gib, of("MetadataFull"), full)
	step("the same, with another number", gib, []*lvmdv1.Condition{{Type: "MetadataFull", Message: "why else"}})
	step("of a second group, too", gib, []*lvmdv1.Condition{{Type: "MetadataFull", Message: "why"}, {Type: "MetadataFull", Message: "another"}},
		"Warning DeviceClassUnhealthy device class local: MetadataFull: another; why")
	step("a disk beside it", gib, of("MetadataFull", "DiskErrors"), "Warning DeviceClassUnhealthy device class local: DiskErrors: why DiskErrors")
	step("that is over", gib, of("MetadataFull"), "Normal DeviceClassRecovered device class local recovered from: DiskErrors")
	step("nothing answers", 0, of("NotResponding"),
		"Warning DeviceClassUnhealthy no volume can be made in device class local: NotResponding: why NotResponding",
		"Normal DeviceClassRecovered device class local recovered from: MetadataFull")
	step("another cause beside it", 0, of("NotResponding", "DuplicateDevice"),
		"Warning DeviceClassUnhealthy no volume can be made in device class local: DuplicateDevice: why DuplicateDevice")
	step("one of them is over", 0, of("DuplicateDevice"), "Normal DeviceClassRecovered device class local recovered from: NotResponding")
	step("another group has space", gib, of("DuplicateDevice"),
		"Warning DeviceClassUnhealthy device class local: DuplicateDevice: why DuplicateDevice")
	step("all is well", gib, nil, "Normal DeviceClassRecovered device class local recovered from: DuplicateDevice")
}
