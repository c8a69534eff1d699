package config

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

const head = "apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n"

func TestAValidFileIsReadWithItsDefaults(t *testing.T) {
	c := must.Get(Parse("f", []byte(head+`
- name: local
  default: true
  volumeGroup: carve
- {name: fast-pmem, volumeGroup: carve-pmem, type: linear, medium: pmem, reserve: 10%, optional: true}
- name: r
  volumeGroup: carve
  reserve: 3Gi
  wipe: zero
  wipeRate: 5Mi
`)))(t)
	if len(c.Classes) != 3 {
		t.Fatalf("%d classes", len(c.Classes))
	}
	a, b, r := c.Classes[0], c.Classes[1], c.Classes[2]
	if a.Name != "local" || !a.Default || !slices.Equal(a.VolumeGroups, []string{"carve"}) || a.Type != Linear || a.Medium != Disk || a.Optional || a.Reserve != (Reserve{}) {
		t.Errorf("first class %+v", a)
	}
	if b.Medium != PMEM || !b.Optional || b.Reserve.Of(1001) != 101 {
		t.Errorf("second class %+v", b)
	}
	if a.Wipe != WipeAuto || a.WipeRate != 0 {
		t.Errorf("first class %+v", a)
	}
	if r.Reserve.Of(1) != 3<<30 || r.Wipe != WipeZero || r.WipeRate != 5<<20 {
		t.Errorf("third class %+v", r)
	}
}

func TestAMistakeIsNamedWithLineKeyGivenAndAllowed(t *testing.T) {
	for _, c := range []struct{ name, file, want string }{
		{"an empty file", "", "lvmd.yaml: the file is empty"},
		{"bad indentation", "apiVersion: x\n kind: y\n", "lvmd.yaml:2:1: not YAML: mapping values are not allowed in this context"},
		{"a list at the top", "- a\n", `lvmd.yaml:1:1: "a list": must be a mapping with the keys apiVersion, deviceClasses, devices, kind, volumeGroups`},
		{"another version", strings.Replace(head, "/v1", "/v2", 1) + "- {name: a, volumeGroup: g}\n",
			`lvmd.yaml:1:13: apiVersion: "carve.csi.local/v2": allowed is carve.csi.local/v1`},
		{"an unknown key at the top", head + "- {name: a, volumeGroup: g}\nextra: 1\n",
			"lvmd.yaml:5:1: extra: unknown key; allowed are apiVersion, deviceClasses, devices, kind, volumeGroups"},
		{"an unknown key in a class", head + "- name: a\n  volumeGroup: g\n  stripe: 2\n",
			"lvmd.yaml:6:3: deviceClasses[0].stripe: unknown key; allowed are copyRate, default, inlinePercent, lvcreateOptions, medium, mirrors, name, optional, reserve, stripeSize, stripes, thin, type, volumeGroup, volumeGroupUUIDs, volumeGroups, wipe, wipeRate"},
		{"a key given twice", head + "- name: a\n  volumeGroup: g\n  name: b\n",
			"lvmd.yaml:6:3: deviceClasses[0].name: given twice"},
		{"no volume group", head + "- name: a\n", "lvmd.yaml:4:3: deviceClasses[0].volumeGroup: missing; it is required, or volumeGroups instead"},
		{"volume groups in both ways", head + "- {name: a, volumeGroup: g, volumeGroups: [h]}\n",
			"lvmd.yaml:4:3: deviceClasses[0].volumeGroups: given together with volumeGroup; exactly one of them is allowed"},
		{"no volume group in a list", head + "- {name: a, volumeGroups: []}\n",
			`lvmd.yaml:4:27: deviceClasses[0].volumeGroups: "a list": must be a list of at least one volume group's name`},
		{"a volume group twice", head + "- {name: a, volumeGroups: [g, h, g]}\n",
			`lvmd.yaml:4:34: deviceClasses[0].volumeGroups[2]: "g": given twice`},
		{"a UUID that is none", head + "- {name: a, volumeGroup: g, volumeGroupUUIDs: [fake]}\n",
			`lvmd.yaml:4:48: deviceClasses[0].volumeGroupUUIDs[0]: "fake": must be a volume group's UUID`},
		{"a UUID of a group that lvmd makes", head + "- {name: a, volumeGroup: g, volumeGroupUUIDs: [5CZaeI-sxI3-efUU-wFok-KrJJ-TPRE-q7G4wg]}\n" +
			"volumeGroups: [{name: g, devices: [{path: /dev/sdb}]}]\n", `and chooses its UUID; allowed is one of the two`},
		{"a volume group with a slash", head + "- {name: a, volumeGroup: a/b}\n",
			`lvmd.yaml:4:26: deviceClasses[0].volumeGroup: "a/b": must be a volume group's name: 1 to 127 of letters, digits and '+_.-', not beginning with '-'`},
		{"an upper-case class", head + "- {name: A, volumeGroup: g}\n",
			`lvmd.yaml:4:10: deviceClasses[0].name: "A": must be a DNS label: 1 to 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit`},
		{"an unknown medium", head + "- {name: a, volumeGroup: g, medium: ssd}\n",
			`lvmd.yaml:4:37: deviceClasses[0].medium: "ssd": allowed is disk or pmem`},
		{"an unknown layout", head + "- {name: a, volumeGroup: g, type: raid0}\n",
			`lvmd.yaml:4:35: deviceClasses[0].type: "raid0": allowed is linear`},
		{"a flag that is none", head + "- {name: a, volumeGroup: g, default: yes}\n",
			`lvmd.yaml:4:38: deviceClasses[0].default: "yes": must be true or false`},
		{"a reserve without sense", head + "- {name: a, volumeGroup: g, reserve: 1.5Gi}\n", `deviceClasses[0].reserve: "1.5Gi": must be`},
		{"a reserve of more than everything", head + "- {name: a, volumeGroup: g, reserve: 101%}\n", `deviceClasses[0].reserve: "101%": must be`},
		{"a reserve that overflows", head + "- {name: a, volumeGroup: g, reserve: 99999Pi}\n", `deviceClasses[0].reserve: "99999Pi": must be`},
		{"a share of more than everything", head + "- {name: a, volumeGroup: g, inlinePercent: 101}\n", `deviceClasses[0].inlinePercent: "101": must be a whole number from 0 to 100`},
		{"an unknown wipe", head + "- {name: a, volumeGroup: g, wipe: shred}\n", `deviceClasses[0].wipe: "shred": allowed is auto or zero or discard or none`},
		{"a wipe that never ends", head + "- {name: a, volumeGroup: g, wipeRate: 1k}\n", `deviceClasses[0].wipeRate: "1k": must be a whole number of bytes`},
		{"two classes of one name", head + "- {name: a, volumeGroup: g}\n- {name: a, volumeGroup: h}\n",
			`lvmd.yaml:5:10: deviceClasses[1].name: "a": the name of deviceClasses[0] already; names must differ`},
		{"two defaults", head + "- {name: a, volumeGroup: g, default: true}\n- {name: b, volumeGroup: g, default: true}\n",
			`lvmd.yaml:5:38: deviceClasses[1].default: "true": deviceClasses[0] is the default already; at most one can be`},
		{"no classes", head, `lvmd.yaml:3:15: deviceClasses: "null": must be a list of at least one device class`},
		{"a second document", head + "- {name: a, volumeGroup: g}\n---\na: b\n", "only one YAML document is allowed"},
		{"several mistakes", head + "- {name: A, volumeGroup: g, medium: ssd}\n", "(and 1 more)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("lvmd.yaml", []byte(c.file))
			var problems Problems
			if !errors.As(err, &problems) {
				t.Fatalf("error %v", err)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %s\nwant %s", err, c.want)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
		})
	}
}

func TestAProblemFoundLaterPointsIntoTheFile(t *testing.T) {
	c := must.Get(Parse("lvmd.yaml", []byte(head+"- name: a\n  volumeGroup: g\n  medium: pmem\n")))(t)
	got := c.Classes[0].Problem("medium", "pmem", "not here").Error()
	if want := `lvmd.yaml:6:11: deviceClasses[0].medium: "pmem": not here`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	got = c.Classes[0].Problem("thin.pool", "p", "a key that is not given").Error()
	if want := `lvmd.yaml:4:3: deviceClasses[0].thin.pool: "p": a key that is not given`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
