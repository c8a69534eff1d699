package config

import (
	"errors"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

func TestAThinClassIsReadWithItsDefaults(t *testing.T) {
	c := must.Get(Parse("f", []byte(head+`
- name: a
  volumeGroup: g
  type: thin
  thin: {pool: p, size: 90%}
- name: b
  volumeGroup: g
  type: thin
  thin:
    pool: q
    size: 10Gi
    metadataSize: 64Mi
    chunkSize: 256Ki
    overprovisioning: 2.5
    dataThreshold: 70%
    metadataThreshold: 60%
    layout: {type: raid10, stripes: 2}
    autoExtend: {step: 1Gi, limit: 50%}
- name: c
  volumeGroup: h
  type: thin
  thin: {pool: q, size: 1Gi, overprovisioning: 300%, autoExtend: {}}
`)))(t)
	a, b, third := c.Classes[0].Thin, c.Classes[1].Thin, c.Classes[2].Thin
	if *a != (ThinPool{Pool: "p", Size: Amount{Percent: 90}, Overprovisioning: 100, DataThreshold: 80, MetadataThreshold: 80, Layout: Linear}) {
		t.Errorf("first %+v", a)
	}
	if *b.AutoExtend != (AutoExtend{Step: Amount{Bytes: 1 << 30}, Limit: Amount{Percent: 50}}) {
		t.Errorf("second extends by %+v", b.AutoExtend)
	}
	b.AutoExtend = nil
	if *b != (ThinPool{Pool: "q", Size: Amount{Bytes: 10 << 30}, MetadataSize: 64 << 20, ChunkSize: 256 << 10, Overprovisioning: 250, DataThreshold: 70, MetadataThreshold: 60,
		Layout: RAID10, Measures: Measures{Stripes: 2, StripeSize: 64 << 10, Mirrors: 1}}) {
		t.Errorf("second %+v", b)
	}
	if third.Overprovisioning != 300 || *third.AutoExtend != (AutoExtend{Step: Amount{Percent: 20}}) {
		t.Errorf("third %+v", third)
	}
	if n := a.Size.Of(1 << 62); n != 1<<62/100*90+1<<62%100*90/100 {
		t.Errorf("90%% of 4 EiB are %d", n)
	}
}

func TestAMistakeInAThinClassIsNamed(t *testing.T) {
	class := func(thin string) string {
		return head + "- {name: a, volumeGroup: g, type: thin, thin: {" + thin + "}}\n"
	}
	for _, c := range []struct{ name, file, want string }{
		{"no thin block", head + "- {name: a, volumeGroup: g, type: thin}\n", "lvmd.yaml:4:3: deviceClasses[0].thin: missing; type: thin requires it"},
		{"a thin block in a linear class", head + "- {name: a, volumeGroup: g, thin: {pool: p, size: 1Gi}}\n",
			"lvmd.yaml:4:35: deviceClasses[0].thin: given for a class of type linear; it is allowed with type: thin only"},
		{"no pool", class("size: 1Gi"), "lvmd.yaml:4:47: deviceClasses[0].thin.pool: missing; it is required"},
		{"no size", class("pool: p"), "deviceClasses[0].thin.size: missing; it is required"},
		{"an unknown key", class("pool: p, size: 1Gi, chunk: 1"),
			"deviceClasses[0].thin.chunk: unknown key; allowed are autoExtend, chunkSize, dataThreshold, layout, metadataSize, metadataThreshold, overprovisioning, pool, size"},
		{"a pool with LVM's own name", class("pool: x_tmeta, size: 1Gi"), `deviceClasses[0].thin.pool: "x_tmeta": must be a logical volume's name`},
		{"half a percent", class("pool: p, size: 0.5%"), `lvmd.yaml:4:63: deviceClasses[0].thin.size: "0.5%": must be a whole number of bytes`},
		{"more than everything", class("pool: p, size: 101%"), "or a whole percentage of the volume group from 1% to 100%"},
		{"nothing", class("pool: p, size: 0"), `deviceClasses[0].thin.size: "0"`},
		{"an unknown layout", class("pool: p, size: 1Gi, layout: {type: raid5}"), `deviceClasses[0].thin.layout.type: "raid5": allowed is linear or striped or raid1 or raid10`},
		{"a layout without a type", class("pool: p, size: 1Gi, layout: {mirrors: 1}"), "deviceClasses[0].thin.layout.type: missing"},
		{"a layout without its stripes", class("pool: p, size: 1Gi, layout: {type: striped}"), "deviceClasses[0].thin.layout.stripes: missing; type: striped requires it"},
		{"a raid10 on all devices", class("pool: p, size: 1Gi, layout: {stripes: all, type: raid10}"),
			`deviceClasses[0].thin.layout.stripes: "all": allowed with type: striped only; type: raid10 needs a whole number from 2`},
		{"mirrors of a striped pool", class("pool: p, size: 1Gi, layout: {type: striped, stripes: 2, mirrors: 1}"),
			"deviceClasses[0].thin.layout.mirrors: given for a pool of type striped; it is allowed with raid1 and raid10 only"},
		{"two copies in a raid10", class("pool: p, size: 1Gi, layout: {type: raid10, stripes: 2, mirrors: 2}"), "type: raid10 has one copy beside the first: 1"},
		{"a small chunk", class("pool: p, size: 1Gi, chunkSize: 32Ki"), "a power of two from 64Ki to 1Gi"},
		{"a large chunk", class("pool: p, size: 1Gi, chunkSize: 2Gi"), "a power of two from 64Ki to 1Gi"},
		{"an odd chunk", class("pool: p, size: 1Gi, chunkSize: 192Ki"), "a power of two from 64Ki to 1Gi"},
		{"small metadata", class("pool: p, size: 1Gi, metadataSize: 1Mi"), "from 2Mi to 16Gi"},
		{"underprovisioning", class("pool: p, size: 1Gi, overprovisioning: 0.9"), `"0.9": must be a percentage from 100% to 10000%, or a number from 1 to 100 with up to two decimals`},
		{"three decimals", class("pool: p, size: 1Gi, overprovisioning: 1.234"), `"1.234": must be a percentage from 100%`},
		{"a threshold above all", class("pool: p, size: 1Gi, dataThreshold: 101%"), `deviceClasses[0].thin.dataThreshold: "101%": must be a whole percentage from 1% to 100%`},
		{"a threshold without a unit", class("pool: p, size: 1Gi, metadataThreshold: 80"), `"80": must be a whole percentage`},
		{"a step of nothing", class("pool: p, size: 1Gi, autoExtend: {step: 0}"), `deviceClasses[0].thin.autoExtend.step: "0"`},
		{"thin on persistent memory", head + "- {name: a, volumeGroup: g, type: thin, medium: pmem, thin: {pool: p, size: 1Gi}}\n",
			`deviceClasses[0].medium: "pmem": thin volumes cannot be mapped directly into memory; allowed with type: thin is disk`},
		{"a wipe", head + "- {name: a, volumeGroup: g, type: thin, wipe: zero, thin: {pool: p, size: 1Gi}}\n",
			"deviceClasses[0].wipe: has no meaning with type: thin: a pool zeroes what it gives to a volume"},
		{"a shared pool", class("pool: p, size: 1Gi") + "- {name: b, volumeGroup: g, type: thin, thin: {pool: p, size: 1Gi}}\n",
			`lvmd.yaml:5:54: deviceClasses[1].thin.pool: "p": the pool of deviceClasses[0] in volume group "g" already; pools must differ`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("lvmd.yaml", []byte(c.file))
			var problems Problems
			if !errors.As(err, &problems) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}
