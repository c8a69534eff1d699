package lvm

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/lvm/layout"
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
		{"-wI-a-----", Attr{Target: '-', Type: '-', Writable: true, Activation: Active}},
		{"-wimdo---k", Attr{Target: '-', Type: '-', Writable: true, Activation: MappedWithoutTables, Open: true, SkipActivation: true}},
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
	groups, err := parseFullReport(b, pins{"carve": ""})
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

func TestGroupsThatLVMHidesAreNotTaken(t *testing.T) {
	b, err := os.ReadFile("testdata/fullreport.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ field, want string }{
		{`"vg_systemid":"other", `, `the system ID "other" (vgchange --systemid)`},
		{`"vg_systemid":"", "vg_lock_type":"sanlock", `, `the lock type sanlock (vgchange --lock-type)`},
		{`"vg_systemid":"", "vg_lock_type":"none", `, ""},
	} {
		report := strings.Replace(string(b), `"vg_name":"carve", `, `"vg_name":"carve", `+c.field, 1)
		d := &disks{groups: map[string]*knownGroup{}}
		found, err := parseFullReport([]byte(report), d.pins([]string{"carve"}))
		if err != nil {
			t.Fatal(err)
		}
		taken, others := d.pick([]string{"carve"}, found), d.Others("carve")
		if c.want == "" {
			if len(taken) != 1 || len(others) != 0 {
				t.Errorf("%s: got %v and the others %v, want the group", c.field, taken, others)
			}
			continue
		}
		if len(taken) != 0 || len(others) != 1 || others[0].Foreign != c.want || others[0].Paths[0] != "/dev/loop0" {
			t.Errorf("%s: got %v and the others %v, want the group hidden by %s", c.field, taken, others, c.want)
		}
		if !d.isForeign("carve") || len(d.view("carve").former) != 2 {
			t.Errorf("%s: the disks are %v, want both known", c.field, d.view("carve"))
		}
		d.Pin("carve", Identity{UUID: "another"})
		if d.pick([]string{"carve"}, found); len(d.Others("carve")) != 0 {
			t.Errorf("%s: a group of another UUID is taken for the one that is pinned", c.field)
		}
	}
}

func TestWhatLVMSaysIsKeptWithoutUUIDs(t *testing.T) {
	err := newCommandError("lvcreate", 5, "  WARNING: x\n  Couldn't find device with uuid Vgrw22-KJoB-qYu2-MBQa-V1PX-0OZo-QQw7l0.\n  Cannot change VG carve-node-data while PVs are missing.\n")
	if want := "Couldn't find device with uuid (UUID).; Cannot change VG carve-node-data while PVs are missing."; err.Message != want {
		t.Errorf("the message is %q, want %q", err.Message, want)
	}
}

func TestAReportThatMakesNoSenseIsAnError(t *testing.T) {
	for _, bad := range []string{
		"", "{", `{"report":[{"vg":[{"vg_name":"a","vg_extent_size":"x"}]}]}`,
		`{"report":[{"vg":[{"vg_name":"a","vg_extent_size":"0"}]}]}`,
	} {
		if _, err := parseFullReport([]byte(bad), pins{"a": ""}); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestWhatIsReportedOfOtherGroupsIsNoError(t *testing.T) {
	for _, other := range []string{
		`"vg":[{"vg_name":"other","vg_extent_size":"x"}]`,
		`"vg":[{"vg_name":"other","vg_extent_size":"0"}]`,
		`"vg":[{"vg_name":"other","vg_extent_size":"1"}],"lv":[{"lv_name":"b","lv_attr":"?","lv_time":"","sync_percent":"?","lv_size":"x"}]`,
		`"vg":"other"`,
		`"vg":[{"vg_name":"a","vg_uuid":"v","vg_extent_size":"1"}],"lv":[{"lv_name":"b","lv_size":"9223372036854775808"}]`,
		`"vg":[{"vg_name":"a","vg_uuid":"v","vg_extent_size":"0"}]`,
	} {
		report := `{"report":[{` + other + `},{"vg":[{"vg_name":"a","vg_uuid":"u","vg_extent_size":"1"}]}]}`
		if groups, err := parseFullReport([]byte(report), pins{"a": "u"}); err != nil || len(groups) != 1 || groups[0].Name != "a" {
			t.Errorf("beside %s: %+v, error %v", other, groups, err)
		}
	}
}

func TestWhatIsSaidWithinAReportIsNotRead(t *testing.T) {
	const said = "  Reading {what} is \"damaged\".\n"
	report := said + "  {\n  \"report\": [\n" + said + "  {\n  \"vg\": [\n  {\"vg_name\":\"a\", \"vg_extent_size\":\"1\"}\n" + said + "  ]\n  }\n  ]\n  }\n" + said
	if groups, err := parseFullReport([]byte(report), pins{"a": ""}); err != nil || len(groups) != 1 {
		t.Errorf("%+v, error %v", groups, err)
	}
}

func TestWhatCannotBeReadOfAVolumeIsUnknown(t *testing.T) {
	const healthy = `"lv_attr":"-wi-a-----","lv_time":"2026-11-21 03:59:04 +0000"`
	for name, test := range map[string]struct {
		lv      string
		unknown bool
	}{
		"no time":           {`"lv_attr":"-wi-a-----","lv_time":""`, false},
		"another time":      {`"lv_attr":"-wi-a-----","lv_time":"yesterday"`, false},
		"other attributes":  {`"lv_attr":"-wi-?---?-","lv_time":""`, true},
		"longer attributes": {`"lv_attr":"-wi-a------","lv_time":""`, true},
		"a percentage":      {`"lv_attr":"-wi-a-----","lv_time":"","sync_percent":"101"`, true},
	} {
		t.Run(name, func(t *testing.T) {
			report := `{"report":[{"vg":[{"vg_name":"a","vg_uuid":"u","vg_extent_size":"1"}],"lv":[{"lv_name":"b",` + test.lv + `},{"lv_name":"c",` + healthy + `}]}]}`
			groups, err := parseFullReport([]byte(report), pins{"a": "u"})
			if err != nil || len(groups) != 1 || len(groups[0].Volumes) != 2 {
				t.Fatalf("%+v, error %v", groups, err)
			}
			if b := groups[0].Volume("b"); !b.Created.IsZero() || (b.Attr.Health == UnknownHealth) != test.unknown || !b.Attr.Writable {
				t.Errorf("it is %+v", b)
			}
			if c := groups[0].Volume("c"); c.Created.IsZero() || c.Attr.Health != Healthy {
				t.Errorf("the other is %+v", c)
			}
		})
	}
}

func TestAStripeLiesOnEachDeviceThatIsOpenForAllocation(t *testing.T) {
	open, closed, missing := PhysicalVolume{Allocatable: true}, PhysicalVolume{}, PhysicalVolume{Allocatable: true, Missing: true}
	for _, c := range []struct {
		devices []PhysicalVolume
		want    layout.Layout
	}{
		{nil, layout.Layout{Type: layout.Linear}},
		{[]PhysicalVolume{open}, layout.Layout{Type: layout.Linear}},
		{[]PhysicalVolume{closed, open}, layout.Layout{Type: layout.Linear}},
		{[]PhysicalVolume{open, closed, open}, layout.Layout{Type: layout.Striped, Stripes: 2, StripeSize: 4096}},
		{[]PhysicalVolume{open, missing, open}, layout.Layout{Type: layout.Striped, Stripes: 3, StripeSize: 4096}},
		{slices.Repeat([]PhysicalVolume{open}, 70), layout.Layout{Type: layout.Striped, Stripes: 64, StripeSize: 4096}},
	} {
		if got := (&Group{Devices: c.devices}).Striped(4096); got != c.want {
			t.Errorf("of %+v: %+v, want %+v", c.devices, got, c.want)
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

func TestTheFilterAcceptsTheDevicesAndNothingElse(t *testing.T) {
	got := lvmConfig([]string{"/dev/vdb", "/dev/disk/by-id/a.b"})
	if want := `global_filter=["a|^/dev/vdb$|","a|^/dev/disk/by-id/a\\.b$|","r|.*|"]`; !strings.Contains(got, want) {
		t.Errorf("%s does not hold %s", got, want)
	}
	if got, want := lvmConfig(nil), `global_filter=["r|.*|"]`; !strings.Contains(got, want) {
		t.Errorf("with none: %s does not hold %s", got, want)
	}
}

func TestAGroupFitsTheDisksThatAreThere(t *testing.T) {
	g := Group{Name: "g", UUID: "u", Devices: []PhysicalVolume{{UUID: "b", Path: "/dev/b"}, {UUID: "a", Missing: true}}}
	for _, c := range []struct {
		identity Identity
		want     bool
	}{
		{Identity{UUID: "u"}, true},
		{Identity{UUID: "v"}, false},
		{Identity{UUID: "u", Devices: []string{"b", "c"}}, true},
		{Identity{UUID: "u", Devices: []string{"a", "c"}}, false}, // A missing device can be in any list.
		{Identity{UUID: "v", Devices: []string{"b"}}, false},
	} {
		taken, others := Identify("g", c.identity, []Group{g, {Name: "h", UUID: "u"}})
		if g.Fits(c.identity) != c.want || (taken != nil) != c.want || (len(others) == 0) != c.want {
			t.Errorf("%v: fits: %v, taken: %v, others: %v; want %v", c.identity, g.Fits(c.identity), taken, others, c.want)
		}
		if len(others) > 0 && (others[0].UUID != "u" || len(others[0].Paths) != 1 || others[0].Paths[0] != "/dev/b") {
			t.Errorf("others: %v", others)
		}
	}
	if got := g.Identity(); !got.Equal(Identity{UUID: "u", Devices: []string{"a", "b"}}) {
		t.Errorf("it is known by %v", got)
	}
}
