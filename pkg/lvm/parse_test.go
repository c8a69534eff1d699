package lvm

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carve-csi/carve/pkg/must"
)

func TestAttributesAreDecodedBitByBit(t *testing.T) {
	for _, c := range []struct {
		text string
		want Attr
	}{
		{"-wi-a-----", Attr{Target: '-', Type: '-', Writable: true, Activation: Active}},
		{"-wi-ao----", Attr{Target: '-', Type: '-', Writable: true, Activation: Active, Open: true}},
		{"-wi-------", Attr{Target: '-', Type: '-', Writable: true}},
		{"-ri-a-----", Attr{Target: '-', Type: '-', Activation: Active}},
		{"-Ri-s-----", Attr{Target: '-', Type: '-', Activation: Suspended}},
		{"-wI-a-----", Attr{Target: '-', Type: '-', Writable: true, Activation: Active, AllocationLocked: true}},
		{"-wimdo---k", Attr{Target: '-', Type: '-', Writable: true, FixedMinor: true, Activation: MappedWithoutTables, Open: true, SkipActivation: true}},
		{"-wi-a---p-", Attr{Target: '-', Type: '-', Writable: true, Activation: Active, Health: Partial}},
		{"rwi-a-r-r-", Attr{Target: 'r', Type: 'r', Writable: true, Activation: Active, Health: RefreshNeeded}},
		{"twi-aotzD-", Attr{Target: 't', Type: 't', Writable: true, Activation: Active, Open: true, ZeroNew: true, Health: OutOfDataSpace}},
		{"twi-cotzM-", Attr{Target: 't', Type: 't', Writable: true, Activation: CheckNeeded, Open: true, ZeroNew: true, Health: MetadataReadOnly}},
		{"-wi-XX----", Attr{Target: '-', Type: '-', Writable: true, Activation: UnknownActivation}},
	} {
		got, err := ParseAttr(c.text)
		if err != nil || got != c.want {
			t.Errorf("%s: got %+v, error %v", c.text, got, err)
		}
	}
	for _, bad := range []string{"", "-wi-a----", "-wi-a------", "-wi-?-----", "-wi-a---?-"} {
		if _, err := ParseAttr(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestAFullReportIsRead(t *testing.T) {
	b, err := os.ReadFile("testdata/fullreport.json")
	if err != nil {
		t.Fatal(err)
	}
	groups, err := parseFullReport(b)
	if err != nil || len(groups) != 1 {
		t.Fatalf("%d groups, error %v", len(groups), err)
	}
	g := groups[0]
	if g.Name != "carve" || g.UUID != "Vgrw22-KJoB-qYu2-MBQa-V1PX-0OZo-QQw7l0" || g.Seqno != 12 || g.ExtentSize != 4<<20 ||
		g.Extents != 94 || g.FreeExtents != 84 || g.MissingDevices != 0 || g.Exported || g.ReadOnly || g.FreeSegments != 2 {
		t.Errorf("group %+v", g)
	}
	if len(g.Devices) != 2 || g.Devices[0].Path != "/dev/loop0" || g.Devices[0].DataOffset != 1<<20 || g.Devices[1].Extents != 31 {
		t.Errorf("devices %+v", g.Devices)
	}
	if g.Allocatable() != 84 {
		t.Errorf("allocatable %d", g.Allocatable())
	}
	v := g.Volume("cv1")
	if v == nil || v.Size != 40<<20 || v.Segments != 1 || !v.Created.Equal(time.Date(2026, 11, 21, 3, 59, 4, 0, time.UTC)) ||
		strings.Join(v.Tags, " ") != "carve.name=x other" || v.Attr.Activation != Active {
		t.Errorf("volume %+v", v)
	}
}

func TestAReportThatMakesNoSenseIsAnError(t *testing.T) {
	for _, bad := range []string{
		"", "{", `{"report":[{"vg":[{"vg_name":"a","vg_extent_size":"x"}]}]}`,
		`{"report":[{"vg":[{"vg_name":"a","vg_extent_size":"0"}]}]}`,
		`{"report":[{"vg":[{"vg_name":"a","vg_extent_size":"1"}],"lv":[{"lv_name":"b","lv_attr":"?"}]}]}`,
	} {
		if _, err := parseFullReport([]byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestWhatCannotBeAllocatedDoesNotCount(t *testing.T) {
	g := Group{Devices: []PhysicalVolume{
		{Extents: 10, AllocatedExtents: 4, Allocatable: true},
		{Extents: 10, AllocatedExtents: 4, Allocatable: false},
	}}
	if g.Allocatable() != 6 {
		t.Errorf("%d", g.Allocatable())
	}
	for _, spoil := range []func(*Group){
		func(g *Group) { g.MissingDevices = 1 }, func(g *Group) { g.Exported = true }, func(g *Group) { g.ReadOnly = true },
	} {
		spoilt := g
		spoil(&spoilt)
		if spoilt.Allocatable() != 0 {
			t.Errorf("%+v: %d", spoilt, spoilt.Allocatable())
		}
	}
}

func TestAnyStringSurvivesATag(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		if len(s) > 300 {
			s = s[:300]
		}
		e := EscapeTag(s)
		if !ValidTag("x=" + e) {
			t.Fatalf("%q becomes %q, which is no tag", s, e)
		}
		back, err := UnescapeTag(e)
		if err != nil || back != s {
			t.Fatalf("%q becomes %q and then %q, error %v", s, e, back, err)
		}
	})
	for _, bad := range []string{"#", "#0", "#G0", "#0G", "a#4A"} {
		if _, err := UnescapeTag(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestNamesAreHeldToLVMsRules(t *testing.T) {
	for _, good := range []string{"a", "carve-vg", "A+_.9", strings.Repeat("a", 127)} {
		if !ValidName(good) {
			t.Errorf("%q was refused", good)
		}
	}
	for _, bad := range []string{"", "-a", ".", "..", "a/b", "a b", "ä", strings.Repeat("a", 128)} {
		if ValidName(bad) {
			t.Errorf("%q was accepted", bad)
		}
	}
	if got := dmName("my-vg", "a-b--c"); got != "my--vg-a--b----c" {
		t.Errorf("device-mapper name %q", got)
	}
}

func TestExtentsAreRoundedUp(t *testing.T) {
	for _, c := range []struct {
		size, extent, want int64
		ok                 bool
	}{
		{0, 4, 1, true}, {1, 4, 1, true}, {4, 4, 1, true}, {5, 4, 2, true},
		{1<<63 - 1, 4 << 20, 0, false}, {1 << 62, 4 << 20, 1 << 40, true},
	} {
		got, ok := ExtentsFor(c.size, c.extent)
		if got != c.want || ok != c.ok {
			t.Errorf("%d in extents of %d: %d, %v", c.size, c.extent, got, ok)
		}
	}
}

func TestTheFilterAcceptsTheDevicesAndNothingElse(t *testing.T) {
	got := lvmConfig([]string{"/dev/vdb", "/dev/disk/by-id/a.b"})
	if want := `global_filter=["a|^/dev/vdb$|","a|^/dev/disk/by-id/a\\.b$|","r|.*|"]`; !strings.Contains(got, want) {
		t.Errorf("%s does not hold %s", got, want)
	}
	if got, want := lvmConfig(nil), `global_filter=["r|.*|"]`; !strings.Contains(got, want) {
		t.Errorf("with none: %s does not hold %s", got, want)
	}
	if got := lvmConfigWithout(nil); !strings.Contains(got, `global_filter=["r|^/dev/mapper/carve\\.crypt\\.|","r|^/dev/mapper/carve\\.luks\\.|"]`) || strings.Contains(got, `"a|`) {
		t.Errorf("with all: %s", got)
	}
	if got, want := lvmConfigWithout([]string{"/dev/vdb", "/dev/mapper/a.b"}), `global_filter=["r|^/dev/vdb$|","r|^/dev/mapper/a\\.b$|","r|^/dev/mapper/carve`; !strings.Contains(got, want) {
		t.Errorf("without some: %s does not hold %s", got, want)
	}
}

func TestMetadataHeadsAreReadFromADisk(t *testing.T) {
	disk, err := os.ReadFile("testdata/pv.bin")
	if err != nil {
		t.Fatal(err)
	}
	head, err := parseTextHead(bytes.NewReader(disk))
	if want := (textHead{group: "carve", id: "5CZaeI-sxI3-efUU-wFok-KrJJ-TPRE-q7G4wg", seqno: 2, size: 1469, limit: 521472}); err != nil || head != want {
		t.Errorf("%+v, want %+v, error %v", head, want, err)
	}
}

func TestGarbageOnADiskIsAnErrorAndNoPanic(t *testing.T) {
	disk := must.Get(os.ReadFile("testdata/pv.bin"))(t)
	rapid.Check(t, func(t *rapid.T) {
		spoilt := bytes.Clone(disk)
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			spoilt[rapid.IntRange(0, 0x1900).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
		if head, err := parseTextHead(bytes.NewReader(spoilt)); err == nil && !ValidName(head.group) {
			t.Fatalf("%+v", head)
		}
	})
	if _, err := parseTextHead(bytes.NewReader(make([]byte, 8192))); err == nil {
		t.Error("an empty disk was accepted")
	}
}

func TestOnlyBlockDevicesThatAreNoVolumesWake(t *testing.T) {
	event := func(s ...string) []byte { return []byte(strings.Join(s, "\x00") + "\x00") }
	for _, c := range []struct {
		event []byte
		want  bool
	}{
		{event("add@/devices/pci/block/sdb", "ACTION=add", "SUBSYSTEM=block", "DEVNAME=sdb"), true},
		{event("change@/devices/virtual/block/loop0", "ACTION=change", "SUBSYSTEM=block", "DEVNAME=loop0"), true},
		{event("add@/devices/virtual/block/dm-3", "ACTION=add", "SUBSYSTEM=block", "DEVNAME=dm-3"), false},
		{event("change@/devices/virtual/block/dm-4", "ACTION=change", "SUBSYSTEM=block", "DEVNAME=dm-4"), true},
		{event("add@/devices/net/eth0", "ACTION=add", "SUBSYSTEM=net"), false},
		{nil, false},
	} {
		isVolume := func(device string) bool { return device == "dm-3" }
		if got := concernsBlockDevice(c.event, isVolume); got != c.want {
			t.Errorf("%q: %v", c.event, got)
		}
	}
}
