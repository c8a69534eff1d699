package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

func TestLayoutsAreReadWithTheirDefaults(t *testing.T) {
	c := must.Get(Parse("f", []byte(head+`
- {name: a, volumeGroup: g, type: striped, stripes: 4, stripeSize: 128Ki, lvcreateOptions: [--readahead=none, --addtag=team=a, --addtag=b]}
- {name: b, volumeGroup: g, type: raid1}
- {name: c, volumeGroup: g, type: raid1, mirrors: 2}
- {name: d, volumeGroup: g, type: raid10, stripes: 2, lvcreateOptions: [--regionsize=4M, --maxrecoveryrate=100m]}
- {name: e, volumeGroup: g, type: raid5, stripes: 2}
- {name: f, volumeGroup: g, type: raid6, stripes: 3, stripeSize: 4Ki}
- {name: g, volumeGroup: g, type: striped, stripes: 2, medium: pmem}
- {name: h, volumeGroup: g, type: raid5, stripes: 2, lvcreateOptions: [--regionsize=4M, --minrecoveryrate=2048, --maxrecoveryrate=2m]}
- {name: i, volumeGroup: g, type: raid1, lvcreateOptions: [--regionsize=1024G, --minrecoveryrate=0]}
- {name: j, volumeGroup: g, type: striped, stripes: all, stripeSize: 128Ki}
`)))(t)
	type measures struct {
		layout     Layout
		stripes    int
		stripeSize int64
		mirrors    int
		devices    int
	}
	for i, want := range []measures{
		{Striped, 4, 128 << 10, 0, 4}, {RAID1, 0, 0, 1, 2}, {RAID1, 0, 0, 2, 3}, {RAID10, 2, 64 << 10, 1, 4},
		{RAID5, 2, 64 << 10, 0, 3}, {RAID6, 3, 4 << 10, 0, 5}, {Striped, 2, 2 << 20, 0, 2}, {}, {},
		{Striped, AllDevices, 128 << 10, 0, 1},
	} {
		d := c.Classes[i]
		if want.layout == "" {
			continue
		}
		if got := (measures{d.Type, d.Stripes, d.StripeSize, d.Mirrors, d.devices(d.Type)}); got != want {
			t.Errorf("class %s: %+v, want %+v", d.Name, got, want)
		}
	}
	if got := c.Classes[0].LvcreateOptions; !slices.Equal(got, []string{"--readahead=none", "--addtag=team=a", "--addtag=b"}) {
		t.Errorf("options %q", got)
	}
}

func TestLayoutsThatMakeNoSenseAreNamed(t *testing.T) {
	class := func(keys string) string { return head + "- {name: a, volumeGroup: g, " + keys + "}\n" }
	for _, c := range []struct{ keys, want string }{
		{"type: striped", "lvmd.yaml:4:3: deviceClasses[0].stripes: missing; type: striped requires it"},
		{"type: striped, stripes: 1", `lvmd.yaml:4:53: deviceClasses[0].stripes: "1": must be a whole number from 2 to 64`},
		{"type: striped, stripes: 65", `deviceClasses[0].stripes: "65": must be a whole number from 2 to 64`},
		{"type: striped, stripes: every", `deviceClasses[0].stripes: "every": must be a whole number from 2 to 64, or all with type: striped`},
		{"type: raid10, stripes: all", `lvmd.yaml:4:52: deviceClasses[0].stripes: "all": allowed with type: striped only; type: raid10 needs a whole number from 2`},
		{"type: raid5, stripes: all", `deviceClasses[0].stripes: "all": allowed with type: striped only; type: raid5 needs a whole number from 2`},
		{"stripes: all, type: raid6", `deviceClasses[0].stripes: "all": allowed with type: striped only; type: raid6 needs a whole number from 3`},
		{"type: raid1, stripes: all", "deviceClasses[0].stripes: given for a class of type raid1"},
		{"stripes: all", "deviceClasses[0].stripes: given for a class of type linear; it is allowed with striped, raid10, raid5 and raid6 only"},
		{"type: raid6, stripes: 2", `deviceClasses[0].stripes: "2": type: raid6 needs at least 3`},
		{"type: raid10, stripes: 40", `deviceClasses[0].stripes: "40": that is 80 devices with copies and parity; at most 64 are allowed`},
		{"stripes: 2", "lvmd.yaml:4:38: deviceClasses[0].stripes: given for a class of type linear; it is allowed with striped, raid10, raid5 and raid6 only"},
		{"type: raid1, stripes: 2", "deviceClasses[0].stripes: given for a class of type raid1"},
		{"type: raid1, stripeSize: 64Ki", "deviceClasses[0].stripeSize: given for a class of type raid1"},
		{"type: raid5, stripes: 2, mirrors: 1", "deviceClasses[0].mirrors: given for a class of type raid5; it is allowed with raid1 and raid10 only"},
		{"type: raid1, mirrors: 0", `deviceClasses[0].mirrors: "0": must be a whole number from 1 to 9`},
		{"type: raid10, stripes: 2, mirrors: 2", `deviceClasses[0].mirrors: "2": type: raid10 has one copy beside the first: 1`},
		{"type: striped, stripes: 2, stripeSize: 100Ki", `deviceClasses[0].stripeSize: "100Ki": must be a power of two from 4Ki to 1Gi`},
		{"type: striped, stripes: 2, stripeSize: 64Ki, medium: pmem", `deviceClasses[0].stripeSize: "65536": with medium: pmem it must be at least 2Mi`},
		{"type: raid1, medium: pmem", `deviceClasses[0].medium: "pmem": RAID volumes cannot be mapped directly into memory; allowed with type: raid1 is disk`},
		{"lvcreateOptions: --readahead=none", `deviceClasses[0].lvcreateOptions: "--readahead=none": must be a list of options`},
		{"lvcreateOptions: [--contiguous=y]", `lvmd.yaml:4:47: deviceClasses[0].lvcreateOptions[0]: "--contiguous=y": must be OPTION=VALUE with one of the options --addtag, --maxrecoveryrate, --minrecoveryrate, --readahead, --regionsize`},
		{"lvcreateOptions: [--readahead]", `deviceClasses[0].lvcreateOptions[0]: "--readahead": must be OPTION=VALUE`},
		{"lvcreateOptions: [--readahead=x y]", `deviceClasses[0].lvcreateOptions[0]: "--readahead=x y": the value must match`},
		{"lvcreateOptions: [--readahead=1, --readahead=2]", `deviceClasses[0].lvcreateOptions[1]: "--readahead=2": --readahead is given twice`},
		{"lvcreateOptions: [--addtag=carve.v1]", `"--addtag=carve.v1": tags that begin with carve are Carve's own`},
		{"lvcreateOptions: [--regionsize=1m]", `deviceClasses[0].lvcreateOptions: "--regionsize=1m": item 0 is for raid1, raid10, raid5 and raid6 only`},
		{"type: raid1, lvcreateOptions: [--regionsize=3m]", `lvmd.yaml:4:59: deviceClasses[0].lvcreateOptions: "--regionsize=3m": item 0: a region must be a power of two from a page of this machine's memory, `},
		{"type: raid1, lvcreateOptions: [--readahead=none, --regionsize=1k]", `"--regionsize=1k": item 1: a region must be a power of two`},
		{"type: raid1, lvcreateOptions: [--regionsize=0m]", `"--regionsize=0m": item 0: a region must be a power of two`},
		{"type: raid1, lvcreateOptions: [--regionsize=2048g]", `"--regionsize=2048g": item 0: a region must be a power of two`},
		{"type: raid1, lvcreateOptions: [--minrecoveryrate=2m, --maxrecoveryrate=2047]", `deviceClasses[0].lvcreateOptions: --minrecoveryrate must come with a --maxrecoveryrate that is no less`},
		{"type: raid1, lvcreateOptions: [--minrecoveryrate=1]", `deviceClasses[0].lvcreateOptions: --minrecoveryrate must come with a --maxrecoveryrate that is no less`},
		{"type: thin, thin: {pool: p, size: 1Gi}, lvcreateOptions: [--readahead=none]", "deviceClasses[0].lvcreateOptions: has no meaning with type: thin"},
		{"type: raid0", `deviceClasses[0].type: "raid0": allowed is linear or striped or raid1 or raid10 or raid5 or raid6 or thin`},
	} {
		if _, err := Parse("lvmd.yaml", []byte(class(c.keys))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\ngot  %v\nwant %s", c.keys, err, c.want)
		}
	}
}
