package config

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Layouts on several devices.
const (
	// Striped spreads data over devices.
	Striped Layout = "striped"
	// RAID1 keeps copies on other devices.
	RAID1 Layout = "raid1"
	// RAID10 spreads data over devices and keeps a copy.
	RAID10 Layout = "raid10"
	// RAID5 spreads data and survives the loss of one device.
	RAID5 Layout = "raid5"
	// RAID6 spreads data and survives the loss of two.
	RAID6 Layout = "raid6"
)

// IsRAID reports whether volumes of a layout survive the loss of a device.
func (l Layout) IsRAID() bool {
	return l == RAID1 || l == RAID10 || l == RAID5 || l == RAID6
}

// AllDevices gives a striped volume a stripe on each device of its volume group, as
// Measures.Stripes; with one device it is linear.
const AllDevices = -1

// allDevices is AllDevices in the file.
const allDevices = "all"

// Bounds and defaults of measures; sizes in bytes.
const (
	// DefaultStripeSize is a stripe's share per device.
	DefaultStripeSize = 64 << 10
	// maxDevices is LVM's limit of a RAID volume's devices.
	maxDevices    = 64
	minStripeSize = 4 << 10
	maxStripeSize = 1 << 30
	maxMirrors    = 9
	// maxRegionSize is the largest power of two that LVM can count in sectors.
	maxRegionSize = 1 << 40
	// pmemStripe is a huge page: mappings can use huge pages only within a stripe.
	pmemStripe = 2 << 20
)

// minStripes is the minimum by layout, parityDevices the number of further devices.
var (
	minStripes    = map[Layout]int{Striped: 2, RAID10: 2, RAID5: 2, RAID6: 3}
	parityDevices = map[Layout]int{RAID5: 1, RAID6: 2}
)

// Measures complete a layout on several devices.
type Measures struct {
	// Zero for layouts without them. StripeSize is in bytes, Mirrors are further copies, and
	// Stripes may be AllDevices.
	Stripes    int
	StripeSize int64
	Mirrors    int
}

func (p *parser) layoutKeys(c *DeviceClass, at func(string, *yaml.Node), known map[string]func(string, *yaml.Node)) {
	p.measureKeys(&c.Measures, at, known)
	known["lvcreateOptions"] = func(k string, v *yaml.Node) { at(k, v); p.lvcreateOptions(c, k, v) }
}

func (p *parser) measureKeys(m *Measures, at func(string, *yaml.Node), known map[string]func(string, *yaml.Node)) {
	known["stripes"] = func(k string, v *yaml.Node) {
		at(k, v)
		if m.Stripes = AllDevices; v.Kind != yaml.ScalarNode || v.Value != allDevices {
			m.Stripes = p.whole(k, v, 2, maxDevices, ", or "+allDevices+" with type: striped")
		}
	}
	known["mirrors"] = func(k string, v *yaml.Node) { at(k, v); m.Mirrors = p.whole(k, v, 1, maxMirrors, "") }
	known["stripeSize"] = func(k string, v *yaml.Node) {
		at(k, v)
		n, ok := parseBytes(v)
		if !ok || n < minStripeSize || n > maxStripeSize || n&(n-1) != 0 {
			p.report(v, k, given(v), "must be a power of two from 4Ki to 1Gi")
		}
		m.StripeSize = n
	}
}

// whole reads a whole number; or is the alternative to name in an error.
func (p *parser) whole(key string, v *yaml.Node, least, most int, or string) int {
	n, err := strconv.Atoi(v.Value)
	if v.Kind != yaml.ScalarNode || err != nil || n < least || n > most {
		p.report(v, key, given(v), fmt.Sprintf("must be a whole number from %d to %d%s", least, most, or))
		return 0
	}
	return n
}

// checkLayout requires the keys of a class' layout, rejects others, and sets defaults.
func (p *parser) checkLayout(c *DeviceClass, n *yaml.Node, path string) {
	p.checkMeasures(c, c.Type, &c.Measures, layoutPlace{node: n, path: path, whose: "a class"})
	p.checkStripeSize(c)
	if c.Type.IsRAID() && c.Medium == PMEM {
		p.problems = append(p.problems, c.Problem("medium", string(PMEM), "RAID volumes cannot be mapped directly into memory; allowed with type: "+string(c.Type)+" is disk")...)
	}
	for i, o := range c.LvcreateOptions {
		if name, _, _ := strings.Cut(o, "="); raidOptions[name] && !c.Type.IsRAID() && c.Type != "" {
			p.problems = append(p.problems, c.Problem("lvcreateOptions", o, fmt.Sprintf("item %d is for raid1, raid10, raid5 and raid6 only", i))...)
		}
	}
	p.checkRAIDOptions(c)
	if len(c.LvcreateOptions) > 0 && c.Type == Thin {
		p.problems = append(p.problems, c.Problem("lvcreateOptions", "", "has no meaning with type: thin")...)
	}
}

// layoutPlace is the position of a layout in the file.
type layoutPlace struct {
	// node and path contain the keys; prefix starts each key in the class' positions.
	node         *yaml.Node
	path, prefix string
	whose        string
}

// checkMeasures requires a layout's measures, rejects others, and sets defaults.
func (p *parser) checkMeasures(c *DeviceClass, l Layout, m *Measures, at layoutPlace) {
	problem := func(key, given, message string) {
		p.problems = append(p.problems, c.Problem(at.prefix+key, given, message)...)
	}
	least, stripes := minStripes[l]
	for _, k := range []struct {
		key, types string
		allowed    bool
	}{
		{"stripes", "striped, raid10, raid5 and raid6", stripes},
		{"stripeSize", "striped, raid10, raid5 and raid6", stripes},
		{"mirrors", "raid1 and raid10", l == RAID1 || l == RAID10},
	} {
		if _, ok := c.positions[at.prefix+k.key]; ok && !k.allowed && l != "" {
			problem(k.key, "", fmt.Sprintf("given for %s of type %s; it is allowed with %s only", at.whose, l, k.types))
		}
	}
	if _, given := c.positions[at.prefix+"mirrors"]; !given && (l == RAID1 || l == RAID10) {
		m.Mirrors = 1
	}
	devices := m.devices(l)
	_, given := c.positions[at.prefix+"stripes"]
	switch {
	case stripes && !given:
		p.report(at.node, at.path+".stripes", "", fmt.Sprintf("missing; type: %s requires it", l))
	case stripes && m.Stripes == AllDevices && l != Striped:
		// It needs a number of devices, and must keep its redundancy when one is lost.
		problem("stripes", allDevices, fmt.Sprintf("allowed with type: striped only; type: %s needs a whole number from %d", l, least))
	case stripes && m.Stripes > 0 && m.Stripes < least:
		problem("stripes", strconv.Itoa(m.Stripes), fmt.Sprintf("type: %s needs at least %d", l, least))
	case devices > maxDevices:
		problem("stripes", strconv.Itoa(m.Stripes), fmt.Sprintf(
			"that is %d devices with copies and parity; at most %d are allowed", devices, maxDevices))
	}
	if l == RAID10 && m.Mirrors > 1 {
		problem("mirrors", strconv.Itoa(m.Mirrors), "type: raid10 has one copy beside the first: 1")
	}
}

func (p *parser) checkStripeSize(c *DeviceClass) {
	if _, stripes := minStripes[c.Type]; !stripes {
		return
	}
	switch _, given := c.positions["stripeSize"]; {
	case !given && c.Medium == PMEM:
		c.StripeSize = pmemStripe
	case !given:
		c.StripeSize = DefaultStripeSize
	case c.Medium == PMEM && c.StripeSize%pmemStripe != 0:
		p.problems = append(p.problems, c.Problem("stripeSize", strconv.FormatInt(c.StripeSize, 10),
			"with medium: pmem it must be at least 2Mi, or huge pages could not be used")...)
	}
}

// devices includes copies and parity.
func (m Measures) devices(l Layout) int {
	return max(1, m.Stripes)*(m.Mirrors+1) + parityDevices[l]
}

// lvcreateValues are the allowed options of lvcreate with patterns of their values. None
// changes a volume's place or size, or Carve's knowledge of it.
var lvcreateValues = map[string]*regexp.Regexp{
	"--readahead":       regexp.MustCompile(`^(auto|none|[0-9]{1,9})$`),
	"--addtag":          regexp.MustCompile(`^[A-Za-z0-9_+.][A-Za-z0-9_+.\-/=!:&]{0,127}$`),
	"--regionsize":      regexp.MustCompile(`^[0-9]{1,6}[kKmMgG]$`),
	"--minrecoveryrate": regexp.MustCompile(`^[0-9]{1,9}[kKmM]?$`),
	"--maxrecoveryrate": regexp.MustCompile(`^[0-9]{1,9}[kKmM]?$`),
}

// raidOptions are valid for RAID volumes only.
var raidOptions = map[string]bool{"--regionsize": true, "--minrecoveryrate": true, "--maxrecoveryrate": true}

// checkRAIDOptions rejects values that LVM always rejects.
func (p *parser) checkRAIDOptions(c *DeviceClass) {
	rates := map[string]int64{}
	for i, o := range c.LvcreateOptions {
		name, value, _ := strings.Cut(o, "=")
		if !raidOptions[name] {
			continue
		}
		size := lvcreateSize(value)
		if name != "--regionsize" {
			rates[name] = size
			continue
		}
		if page := os.Getpagesize(); size <= 0 || size > maxRegionSize || size&(size-1) != 0 || size%int64(page) != 0 {
			p.problems = append(p.problems, c.Problem("lvcreateOptions", o, fmt.Sprintf(
				"item %d: a region must be a power of two from a page of this machine's memory, %dk, to 1024g", i, page>>10))...)
		}
	}
	if rates["--minrecoveryrate"] > rates["--maxrecoveryrate"] {
		p.problems = append(p.problems, c.Problem("lvcreateOptions", "",
			"--minrecoveryrate must come with a --maxrecoveryrate that is no less")...)
	}
}

// lvcreateSize converts an lvcreate size to bytes; the default unit is KiB.
func lvcreateSize(value string) int64 {
	digits := strings.TrimRight(value, "kKmMgG")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0
	}
	switch strings.ToLower(value[len(digits):]) {
	case "m":
		return n << 20
	case "g":
		return n << 30
	}
	return n << 10
}

func (p *parser) lvcreateOptions(c *DeviceClass, key string, n *yaml.Node) {
	if n.Kind != yaml.SequenceNode {
		p.report(n, key, given(n), "must be a list of options such as --readahead=none")
		return
	}
	seen := map[string]bool{}
	for i, item := range n.Content {
		path := fmt.Sprintf("%s[%d]", key, i)
		name, value, ok := strings.Cut(item.Value, "=")
		allowed := lvcreateValues[name]
		switch {
		case item.Kind != yaml.ScalarNode || !ok || allowed == nil:
			p.report(item, path, given(item), "must be OPTION=VALUE with one of the options "+lvcreateNames())
		case !allowed.MatchString(value):
			p.report(item, path, item.Value, "the value must match "+allowed.String())
		case name == "--addtag" && strings.HasPrefix(value, "carve"):
			p.report(item, path, item.Value, "tags that begin with carve are Carve's own")
		case seen[name] && name != "--addtag":
			p.report(item, path, item.Value, name+" is given twice")
		default:
			c.LvcreateOptions = append(c.LvcreateOptions, item.Value)
		}
		seen[name] = true
	}
}

func lvcreateNames() string {
	var names []string
	for name := range lvcreateValues {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
