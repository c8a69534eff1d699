package config

import (
	"reflect"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

const groupsHead = "apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n- {name: a, volumeGroups: [carve, tmp, g, h]}\nvolumeGroups:\n"

func TestVolumeGroupsAreRead(t *testing.T) {
	c := must.Get(Parse("f", []byte(groupsHead+`
- name: carve
  medium: pmem
  devices:
  - path: /dev/nvme[1-9]n1
    size: {min: 10Gi, max: 1Ti}
    rotational: false
  - {byID: "nvme-Samsung*", model: "Samsung SSD*"}
  - instanceStore: true
  allowSignatures: [/dev/disk/by-id/wwn-0x1]
- name: tmp
  loopFile: {path: /var/lib/carve/loop.img, size: 20Gi}
`)))(t)
	g := c.Group("carve")
	if g == nil || g.Medium != PMEM || len(g.Devices) != 3 || len(g.AllowSignatures) != 1 || g.LoopFile != nil {
		t.Fatalf("group %+v", g)
	}
	a, b, s := g.Devices[0], g.Devices[1], g.Devices[2]
	if a.Path != "/dev/nvme[1-9]n1" || a.MinSize != 10<<30 || a.MaxSize != 1<<40 || a.Rotational == nil || *a.Rotational {
		t.Errorf("first selector %+v", a)
	}
	if b.ByID != "nvme-Samsung*" || b.Model != "Samsung SSD*" || !s.InstanceStore {
		t.Errorf("other selectors %+v, %+v", b, s)
	}
	if l := c.Group("tmp").LoopFile; l == nil || *l != (LoopFile{Path: "/var/lib/carve/loop.img", Size: 20 << 30}) {
		t.Errorf("loop file %+v", l)
	}
	if c.Group("other") != nil {
		t.Error("a group that is not configured was found")
	}
}

const oneClass = "apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n- {name: a, volumeGroup: g}\n"

func TestAFilterOfDevicesIsRead(t *testing.T) {
	c := must.Get(Parse("f", []byte(oneClass+"devices: {allow: [{path: /dev/nvme*}, {instanceStore: true}], deny: [{model: m}]}\n")))(t)
	want := DeviceFilter{Allow: []DeviceSelector{{Path: "/dev/nvme*"}, {InstanceStore: true}}, Deny: []DeviceSelector{{Model: "m"}}}
	if !reflect.DeepEqual(c.Devices, want) || c.Devices.IsEmpty() {
		t.Errorf("the filter is %+v, want %+v", c.Devices, want)
	}
	if c := must.Get(Parse("f", []byte(oneClass)))(t); !c.Devices.IsEmpty() {
		t.Errorf("without the key the filter is %+v, want an empty one", c.Devices)
	}
	for _, wrong := range []struct{ devices, want string }{
		{"{}", "f:5:10: devices: must have allow, deny or both"},
		{"[/dev/sda]", `f:5:10: devices: "a list": must be a mapping with the keys allow, deny`},
		{"{allow: []}", `f:5:18: devices.allow: "a list": must be a list of at least one device selector`},
		{"{deny: [{}]}", "f:5:18: devices.deny[0]: selects every device; at least one condition is required"},
		{"{deny: [{path: sda}]}", `f:5:25: devices.deny[0].path: "sda": must be a path below /dev; * ? and [...] match within one name`},
	} {
		_, err := Parse("f", []byte(oneClass+"devices: "+wrong.devices+"\n"))
		if err == nil || err.Error() != wrong.want {
			t.Errorf("devices: %s: error %v, want %s", wrong.devices, err, wrong.want)
		}
	}
}

func TestAMistakeInAVolumeGroupIsNamed(t *testing.T) {
	for _, c := range []struct{ name, file, want string }{
		{"no list", "  name: a\n", `volumeGroups: "a mapping": must be a list of at least one volume group`},
		{"neither devices nor a file", "- name: g\n", "f:6:3: volumeGroups[0].devices: missing; it is required, or loopFile instead"},
		{"devices and a file", "- {name: g, devices: [{model: m}], loopFile: {path: /f, size: 64Mi}}\n",
			"f:6:3: volumeGroups[0].loopFile: given together with devices; exactly one of them is allowed"},
		{"no name", "- {devices: [{model: m}]}\n", "f:6:3: volumeGroups[0].name: missing; it is required"},
		{"one name twice", "- {name: g, devices: [{model: m}]}\n- {name: g, devices: [{model: n}]}\n",
			`f:7:3: volumeGroups[1].name: "g": the name of volumeGroups[0] already; names must differ`},
		{"an empty selector", "- {name: g, devices: [{}]}\n", "f:6:23: volumeGroups[0].devices[0]: selects every device; at least one condition is required"},
		{"an unknown condition", "- {name: g, devices: [{serial: x}]}\n",
			"f:6:24: volumeGroups[0].devices[0].serial: unknown key; allowed are byID, instanceStore, model, path, rotational, size"},
		{"a path that is none of a device", "- {name: g, devices: [{path: sdb}]}\n",
			`f:6:30: volumeGroups[0].devices[0].path: "sdb": must be a path below /dev; * ? and [...] match within one name`},
		{"a path that leaves /dev", "- {name: g, devices: [{path: /dev/../etc/x}]}\n", `volumeGroups[0].devices[0].path: "/dev/../etc/x": must be`},
		{"a broken pattern", "- {name: g, devices: [{path: '/dev/sd[a'}]}\n", `volumeGroups[0].devices[0].path: "/dev/sd[a": must be`},
		{"an id with its directory", "- {name: g, devices: [{byID: /dev/disk/by-id/x}]}\n", `volumeGroups[0].devices[0].byID: "/dev/disk/by-id/x": must be a name`},
		{"a size without bounds", "- {name: g, devices: [{size: {}}]}\n", `volumeGroups[0].devices[0].size: must have min, max or both`},
		{"bounds in the wrong order", "- {name: g, devices: [{size: {min: 2Gi, max: 1Gi}}]}\n",
			`volumeGroups[0].devices[0].size: min, 2147483648 bytes, is more than max, 1073741824`},
		{"a size that is none", "- {name: g, devices: [{size: {min: 1.5Gi}}]}\n", `volumeGroups[0].devices[0].size.min: "1.5Gi": must be`},
		{"an instance store that is none", "- {name: g, devices: [{instanceStore: false}]}\n",
			`volumeGroups[0].devices[0].instanceStore: "false": allowed is true`},
		{"rotational maybe", "- {name: g, devices: [{rotational: maybe}]}\n", `volumeGroups[0].devices[0].rotational: "maybe": must be true or false`},
		{"permission for many devices", "- {name: g, devices: [{model: m}], allowSignatures: ['/dev/sd*']}\n",
			`volumeGroups[0].allowSignatures[0]: "/dev/sd*": must be the path of one device below /dev, without wildcards`},
		{"a file in /dev", "- {name: g, loopFile: {path: /dev/sdb, size: 1Gi}}\n", `volumeGroups[0].loopFile.path: "/dev/sdb": must be`},
		{"a relative file", "- {name: g, loopFile: {path: f, size: 1Gi}}\n", `volumeGroups[0].loopFile.path: "f": must be`},
		{"a small file", "- {name: g, loopFile: {path: /f, size: 1Mi}}\n", `volumeGroups[0].loopFile.size: "1Mi": must be`},
		{"one file twice", "- {name: g, loopFile: {path: /f, size: 1Gi}}\n- {name: h, loopFile: {path: /f, size: 1Gi}}\n",
			`volumeGroups[1].loopFile.path: "/f": the file of volumeGroups[0] already; files must differ`},
		{"a group without a class", "- {name: unused, loopFile: {path: /f, size: 1Gi}}\n",
			`f:6:3: volumeGroups[0]: "unused": no device class uses this volume group`},
		{"a file as persistent memory", "- {name: g, medium: pmem, loopFile: {path: /f, size: 1Gi}}\n",
			`volumeGroups[0].medium: "pmem": a loop file is no persistent memory; allowed is disk`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("f", []byte(groupsHead+c.file))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestAClassOnPersistentMemoryNeedsAGroupMadeForIt(t *testing.T) {
	_, err := Parse("f", []byte(strings.Replace(groupsHead, "h]}", "h], medium: pmem}", 1)+
		"- {name: carve, devices: [{path: /dev/pmem0}]}\n"))
	want := `f:4:55: deviceClasses[0].medium: "pmem": volume group "carve" has another medium; set medium: pmem on volumeGroups[0], too`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
