package config

import (
	"fmt"
	"math/bits"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Thin volumes take space from a thin pool only where they are written.
const Thin Layout = "thin"

// Defaults and bounds of a thin pool.
const (
	// DefaultOverprovisioning is none: the pool can hold all of its volumes.
	DefaultOverprovisioning = 100
	maxOverprovisioning     = 10000
	// DefaultThreshold is the percentage of data or metadata at which a pool counts as filling
	// up.
	DefaultThreshold = 80
	// DefaultStep is the percentage by which a pool grows.
	DefaultStep = 20

	// MinChunk and MaxChunk are the kernel's bounds of a chunk in bytes (device-mapper's
	// thin-provisioning.rst).
	MinChunk = 64 << 10
	MaxChunk = 1 << 30

	minPoolMetadata = 2 << 20
	maxPoolMetadata = 16 << 30
)

// ThinPool is a class' thin pool in each of its volume groups.
type ThinPool struct {
	// Pool is the logical volume's name.
	Pool string
	// Size is a new pool's data size: bytes, or percent of the volume group.
	Size Amount
	// MetadataSize is in bytes; zero leaves it to LVM.
	MetadataSize int64
	// ChunkSize is a new pool's unit of provisioning in bytes: a power of two from MinChunk to
	// MaxChunk, or zero to choose by the pool's size.
	ChunkSize int64
	// Overprovisioning limits the sum of the volumes' sizes, in percent of the pool's: at
	// least 100.
	Overprovisioning int64
	// DataThreshold and MetadataThreshold are percentages from 1 to 100.
	DataThreshold, MetadataThreshold int64
	// Layout and Measures place the data of a new pool: Linear, Striped, RAID1 or RAID10.
	Layout Layout
	Measures
	// AutoExtend may be nil: then the pool keeps its size.
	AutoExtend *AutoExtend
}

// AutoExtend grows a pool that passes a threshold.
type AutoExtend struct {
	// Step is added to the data: bytes, or percent of its size.
	Step Amount
	// Limit bounds the data: bytes, or percent of the volume group. Zero allows all of the
	// group but the class' reserve.
	Limit Amount
}

// Amount is a number of bytes, or a whole percentage.
type Amount struct {
	// Bytes is zero if Percent is given.
	Bytes, Percent int64
}

// IsZero reports whether no amount was given.
func (a Amount) IsZero() bool { return a == Amount{} }

// Of returns the amount in bytes of a whole of total bytes, rounded down.
func (a Amount) Of(total int64) int64 {
	if a.Percent == 0 {
		return a.Bytes
	}
	return MulDiv(total, a.Percent, 100)
}

// MulDiv returns a*b/c, rounded down, without intermediate overflow. Arguments must not be
// negative, c must be positive, and the result must fit.
func MulDiv(a, b, c int64) int64 {
	high, low := bits.Mul64(uint64(a), uint64(b))
	quotient, _ := bits.Div64(high, low, uint64(c))
	return int64(quotient)
}

const (
	poolRule    = "must be a logical volume's name: 1 to 100 of letters, digits and '+_.-', not beginning with '-' or 'lvol'"
	ratioRule   = "must be a percentage from 100% to 10000%, or a number from 1 to 100 with up to two decimals"
	percentRule = "must be a whole percentage from 1% to 100%"
)

var (
	poolName = regexp.MustCompile(`^[A-Za-z0-9+_.][A-Za-z0-9+_.-]{0,99}$`)
	percent  = regexp.MustCompile(`^([1-9][0-9]{0,4})%$`)
	decimal  = regexp.MustCompile(`^([0-9]{1,3})(?:\.([0-9]{1,2}))?$`)
)

func (p *parser) thin(c *DeviceClass, key string, n *yaml.Node) {
	t := &ThinPool{
		Overprovisioning: DefaultOverprovisioning, DataThreshold: DefaultThreshold, MetadataThreshold: DefaultThreshold,
		Layout: Linear,
	}
	at := func(k string, v *yaml.Node) {
		c.positions["thin."+strings.TrimPrefix(k, key+".")] = position{v.Line, v.Column}
	}
	threshold := func(into *int64) func(string, *yaml.Node) {
		return func(k string, v *yaml.Node) {
			at(k, v)
			n, ok := parsePercent(v)
			if !ok || n > 100 {
				p.report(v, k, given(v), percentRule)
				return
			}
			*into = n
		}
	}
	p.fields(n, key, map[string]func(string, *yaml.Node){
		"pool": func(k string, v *yaml.Node) {
			at(k, v)
			if v.Kind != yaml.ScalarNode || !poolName.MatchString(v.Value) || strings.Trim(v.Value, ".") == "" || strings.HasPrefix(v.Value, "lvol") || reservedName(v.Value) {
				p.report(v, k, given(v), poolRule)
			}
			t.Pool = v.Value
		},
		"size": func(k string, v *yaml.Node) {
			at(k, v)
			t.Size = p.amount(k, v, 100, "of the volume group")
		},
		"metadataSize": func(k string, v *yaml.Node) {
			at(k, v)
			n, ok := parseBytes(v)
			if !ok || n < minPoolMetadata || n > maxPoolMetadata {
				p.report(v, k, given(v), "must be "+bytesRule+", from 2Mi to 16Gi")
			}
			t.MetadataSize = n
		},
		"chunkSize": func(k string, v *yaml.Node) {
			at(k, v)
			n, ok := parseBytes(v)
			if !ok || n < MinChunk || n > MaxChunk || bits.OnesCount64(uint64(n)) != 1 {
				p.report(v, k, given(v), "must be "+bytesRule+", a power of two from 64Ki to 1Gi")
			}
			t.ChunkSize = n
		},
		"overprovisioning": func(k string, v *yaml.Node) {
			at(k, v)
			n, ok := parseRatio(v)
			if !ok || n < DefaultOverprovisioning || n > maxOverprovisioning {
				p.report(v, k, given(v), ratioRule)
			}
			t.Overprovisioning = n
		},
		"dataThreshold":     threshold(&t.DataThreshold),
		"metadataThreshold": threshold(&t.MetadataThreshold),
		"layout": func(k string, v *yaml.Node) {
			at(k, v)
			p.poolLayout(c, t, k, v)
		},
		"autoExtend": func(k string, v *yaml.Node) {
			at(k, v)
			t.AutoExtend = p.autoExtend(k, v)
		},
	}, "pool", "size")
	c.Thin = t
}

func (p *parser) poolLayout(c *DeviceClass, t *ThinPool, key string, n *yaml.Node) {
	const prefix = "thin.layout."
	at := func(k string, v *yaml.Node) {
		c.positions[prefix+strings.TrimPrefix(k, key+".")] = position{v.Line, v.Column}
	}
	known := map[string]func(string, *yaml.Node){
		"type": func(k string, v *yaml.Node) {
			at(k, v)
			t.Layout = Layout(p.oneOf(k, v, string(Linear), string(Striped), string(RAID1), string(RAID10)))
		},
	}
	p.measureKeys(&t.Measures, at, known)
	p.fields(n, key, known, "type")
	p.checkMeasures(c, t.Layout, &t.Measures, layoutPlace{node: n, path: key, prefix: prefix, whose: "a pool"})
	if _, given := c.positions[prefix+"stripeSize"]; !given && minStripes[t.Layout] > 0 {
		t.StripeSize = DefaultStripeSize
	}
}

func (p *parser) autoExtend(key string, n *yaml.Node) *AutoExtend {
	a := &AutoExtend{Step: Amount{Percent: DefaultStep}}
	p.fields(n, key, map[string]func(string, *yaml.Node){
		"step":  func(k string, v *yaml.Node) { a.Step = p.amount(k, v, 1000, "of the pool's size") },
		"limit": func(k string, v *yaml.Node) { a.Limit = p.amount(k, v, 100, "of the volume group") },
	})
	return a
}

// amount reads bytes or a percentage, not zero.
func (p *parser) amount(key string, v *yaml.Node, maxPercent int64, whole string) Amount {
	if n, ok := parsePercent(v); ok && n <= maxPercent {
		return Amount{Percent: n}
	}
	if n, ok := parseBytes(v); ok && n > 0 {
		return Amount{Bytes: n}
	}
	p.report(v, key, given(v), fmt.Sprintf("must be %s, or a whole percentage %s from 1%% to %d%%", bytesRule, whole, maxPercent))
	return Amount{}
}

// checkThin requires a thin block if and only if the class is thin, and rejects keys that thin
// volumes cannot have.
func (p *parser) checkThin(c *DeviceClass, n *yaml.Node, path string) {
	switch {
	case c.Type != Thin && c.Thin != nil:
		p.problems = append(p.problems, c.Problem("thin", "", fmt.Sprintf("given for a class of type %s; it is allowed with type: thin only", c.Type))...)
		return
	case c.Type != Thin:
		return
	case c.Thin == nil:
		p.report(n, path+".thin", "", "missing; type: thin requires it")
		return
	}
	if c.Medium == PMEM {
		p.problems = append(p.problems, c.Problem("medium", string(PMEM), "thin volumes cannot be mapped directly into memory; allowed with type: thin is disk")...)
	}
	for _, key := range []string{"wipe", "wipeRate"} {
		if _, ok := c.positions[key]; ok {
			p.problems = append(p.problems, c.Problem(key, "", "has no meaning with type: thin: a pool zeroes what it gives to a volume")...)
		}
	}
}

// onePool rejects a pool shared by two classes: each decides alone about the pool's use.
func (p *parser) onePool(classes []DeviceClass) {
	type place struct{ group, pool string }
	first := map[place]int{}
	for i := range classes {
		c := &classes[i]
		if c.Thin == nil {
			continue
		}
		for _, g := range c.VolumeGroups {
			at := place{g, c.Thin.Pool}
			if j, ok := first[at]; ok && c.Thin.Pool != "" {
				p.problems = append(p.problems, c.Problem("thin.pool", c.Thin.Pool,
					fmt.Sprintf("the pool of deviceClasses[%d] in volume group %q already; pools must differ", j, g))...)
				break
			}
			first[at] = i
		}
	}
}

// reservedName reports whether LVM reserves the name.
func reservedName(s string) bool {
	for _, part := range []string{"_tmeta", "_tdata", "_pmspare", "_rimage", "_rmeta", "_mimage", "_mlog", "_cdata", "_cmeta", "_corig", "_vorigin", "_vdata", "_imeta", "_iorig"} {
		if strings.Contains(s, part) {
			return true
		}
	}
	return strings.HasPrefix(s, "snapshot") || strings.HasPrefix(s, "pvmove")
}

func parsePercent(v *yaml.Node) (int64, bool) {
	if v.Kind != yaml.ScalarNode {
		return 0, false
	}
	m := percent.FindStringSubmatch(v.Value)
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	return n, err == nil
}

// parseRatio reads 150%, 1.5 or 1.50 as 150 hundredths.
func parseRatio(v *yaml.Node) (int64, bool) {
	if n, ok := parsePercent(v); ok {
		return n, true
	}
	if v.Kind != yaml.ScalarNode {
		return 0, false
	}
	m := decimal.FindStringSubmatch(v.Value)
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseInt(m[1]+(m[2] + "00")[:2], 10, 64)
	return n, err == nil
}
