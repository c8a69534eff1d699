package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

type position struct{ line, column int }

// Parse validates the contents of a file; the name is for messages.
func Parse(file string, data []byte) (*Config, error) {
	p := &parser{file: file}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document yaml.Node
	if err := decoder.Decode(&document); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, Problems{{File: file, Reason: "the file is empty"}}
		}
		return nil, Problems{p.syntax(err)}
	}
	var second yaml.Node
	if err := decoder.Decode(&second); err == nil {
		p.report(&second, "", "", "only one YAML document is allowed")
	} else if !errors.Is(err, io.EOF) {
		return nil, Problems{p.syntax(err)}
	}
	c := p.config(document.Content[0])
	p.groupUse(c)
	if len(p.problems) > 0 {
		slices.SortStableFunc(p.problems, func(a, b Problem) int { return a.Line - b.Line })
		return nil, p.problems
	}
	return c, nil
}

type parser struct {
	file     string
	problems Problems
}

var syntaxLine = regexp.MustCompile(`^yaml: line (\d+): (.*)$`)

func (p *parser) syntax(err error) Problem {
	problem := Problem{File: p.file, Reason: "not YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}
	if m := syntaxLine.FindStringSubmatch(err.Error()); m != nil {
		problem.Line, _ = strconv.Atoi(m[1])
		problem.Column = 1
		problem.Reason = "not YAML: " + m[2]
	}
	return problem
}

func (p *parser) report(n *yaml.Node, key, given, reason string) {
	p.problems = append(p.problems, Problem{
		File: p.file, Line: n.Line, Column: n.Column, Key: key, Given: given, Reason: reason,
	})
}

// fields calls the function of each key with its value. It reports unknown, repeated and
// missing required keys.
func (p *parser) fields(n *yaml.Node, path string, known map[string]func(key string, value *yaml.Node), required ...string) {
	if n.Kind != yaml.MappingNode {
		p.report(n, path, given(n), "must be a mapping with the keys "+keys(known))
		return
	}
	prefix := path
	if prefix != "" {
		prefix += "."
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		read := known[name.Value]
		switch {
		case read == nil:
			p.report(name, prefix+name.Value, "", "unknown key; allowed are "+keys(known))
		case seen[name.Value]:
			p.report(name, prefix+name.Value, "", "given twice")
		default:
			read(prefix+name.Value, value)
		}
		seen[name.Value] = true
	}
	for _, r := range required {
		if !seen[r] {
			p.report(n, prefix+r, "", "missing; it is required")
		}
	}
}

func (p *parser) config(n *yaml.Node) *Config {
	c := &Config{}
	p.fields(n, "", map[string]func(string, *yaml.Node){
		"apiVersion": func(k string, v *yaml.Node) { p.oneOf(k, v, APIVersion) },
		"kind":       func(k string, v *yaml.Node) { p.oneOf(k, v, Kind) },
		"deviceClasses": func(k string, v *yaml.Node) {
			if v.Kind != yaml.SequenceNode || len(v.Content) == 0 {
				p.report(v, k, given(v), "must be a list of at least one device class")
				return
			}
			for i, item := range v.Content {
				c.Classes = append(c.Classes, p.class(fmt.Sprintf("%s[%d]", k, i), i, item))
			}
			p.uniqueness(c.Classes)
			p.onePool(c.Classes)
		},
		"devices":      func(k string, v *yaml.Node) { c.Devices = p.deviceFilter(k, v) },
		"volumeGroups": func(k string, v *yaml.Node) { p.volumeGroups(c, k, v) },
	}, "apiVersion", "kind", "deviceClasses")
	return c
}

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

func (p *parser) class(path string, index int, n *yaml.Node) DeviceClass {
	c := DeviceClass{
		Type: Linear, Medium: Disk, InlinePercent: DefaultInlinePercent, Wipe: WipeAuto, file: p.file, index: index,
		positions: map[string]position{"": {n.Line, n.Column}},
	}
	at := func(key string, v *yaml.Node) {
		c.positions[key[strings.LastIndex(key, ".")+1:]] = position{v.Line, v.Column}
	}
	text := func(into *string, allowed *regexp.Regexp, reason string) func(string, *yaml.Node) {
		return func(k string, v *yaml.Node) {
			at(k, v)
			if v.Kind != yaml.ScalarNode || !allowed.MatchString(v.Value) || v.Value == "." || v.Value == ".." {
				p.report(v, k, given(v), reason)
				return
			}
			*into = v.Value
		}
	}
	flag := func(into *bool) func(string, *yaml.Node) {
		return func(k string, v *yaml.Node) {
			at(k, v)
			if v.Kind != yaml.ScalarNode || v.Value != "true" && v.Value != "false" {
				p.report(v, k, given(v), "must be true or false")
				return
			}
			*into = v.Value == "true"
		}
	}
	rate := func(into *int64) func(string, *yaml.Node) {
		return func(k string, v *yaml.Node) {
			at(k, v)
			n, ok := parseBytes(v)
			if !ok || n < minRate {
				p.report(v, k, given(v), "must be "+bytesRule+", per second, and at least 1Mi")
			}
			*into = n
		}
	}
	known := map[string]func(string, *yaml.Node){
		"name":             text(&c.Name, dnsLabel, "must be a DNS label: 1 to 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit"),
		"volumeGroup":      func(k string, v *yaml.Node) { at(k, v); p.classGroups(&c, k, v, false) },
		"volumeGroups":     func(k string, v *yaml.Node) { at(k, v); p.classGroups(&c, k, v, true) },
		"volumeGroupUUIDs": func(k string, v *yaml.Node) { at(k, v); p.groupUUIDs(&c, k, v) },
		"default":          flag(&c.Default),
		"optional":         flag(&c.Optional),
		"type": func(k string, v *yaml.Node) {
			at(k, v)
			c.Type = Layout(p.oneOf(k, v, string(Linear), string(Striped), string(RAID1), string(RAID10), string(RAID5), string(RAID6), string(Thin)))
		},
		"medium": func(k string, v *yaml.Node) {
			at(k, v)
			c.Medium = Medium(p.oneOf(k, v, string(Disk), string(PMEM)))
		},
		"reserve": func(k string, v *yaml.Node) {
			at(k, v)
			r, ok := parseReserve(v)
			if !ok {
				p.report(v, k, given(v), "must be "+bytesRule+", or a percentage from 0% to 100% with up to two decimals")
			}
			c.Reserve = r
		},
		"inlinePercent": func(k string, v *yaml.Node) { at(k, v); c.InlinePercent = p.whole(k, v, 0, 100, "") },
		"wipe": func(k string, v *yaml.Node) {
			at(k, v)
			c.Wipe = Wipe(p.oneOf(k, v, string(WipeAuto), string(WipeZero), string(WipeDiscard), string(WipeNone)))
		},
		"wipeRate": rate(&c.WipeRate),
		"copyRate": rate(&c.CopyRate),
		"thin":     func(k string, v *yaml.Node) { at(k, v); p.thin(&c, k, v) },
	}
	p.layoutKeys(&c, at, known)
	p.fields(n, path, known, "name")
	p.oneKindOfGroups(&c, n, path)
	p.checkThin(&c, n, path)
	p.checkLayout(&c, n, path)
	return c
}

// uniqueness makes the checks across classes.
func (p *parser) uniqueness(classes []DeviceClass) {
	first := map[string]int{}
	defaultClass := -1
	for i, c := range classes {
		if c.Name != "" {
			if j, ok := first[c.Name]; ok {
				p.problems = append(p.problems, classes[i].Problem("name", c.Name,
					fmt.Sprintf("the name of deviceClasses[%d] already; names must differ", j))...)
			} else {
				first[c.Name] = i
			}
		}
		if c.Default {
			if defaultClass >= 0 {
				p.problems = append(p.problems, classes[i].Problem("default", "true",
					fmt.Sprintf("deviceClasses[%d] is the default already; at most one can be", defaultClass))...)
			} else {
				defaultClass = i
			}
		}
	}
}

func (p *parser) oneOf(key string, v *yaml.Node, allowed ...string) string {
	if v.Kind != yaml.ScalarNode || !slices.Contains(allowed, v.Value) {
		p.report(v, key, given(v), "allowed is "+strings.Join(allowed, " or "))
		return ""
	}
	return v.Value
}

// minRate bounds wipeRate, below which space would hardly return, and copyRate.
const minRate = 1 << 20

const bytesRule = "a whole number of bytes, with one of the suffixes k, M, G, T, P, Ki, Mi, Gi, Ti, Pi or without"

var suffixes = map[string]int64{
	"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
	"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50,
}

var amount = regexp.MustCompile(`^([0-9]{1,18})([kMGTP]i?|Ki)?$`)

var fraction = regexp.MustCompile(`^([0-9]{1,3})(?:\.([0-9]{1,2}))?%$`)

func parseReserve(v *yaml.Node) (Reserve, bool) {
	if v.Kind != yaml.ScalarNode {
		return Reserve{}, false
	}
	if m := fraction.FindStringSubmatch(v.Value); m != nil {
		n, _ := strconv.ParseInt(m[1]+(m[2] + "00")[:2], 10, 64)
		return Reserve{BasisPoints: n}, n <= 10000
	}
	n, ok := parseBytes(v)
	return Reserve{Bytes: n}, ok
}

func parseBytes(v *yaml.Node) (int64, bool) {
	if v.Kind != yaml.ScalarNode {
		return 0, false
	}
	n, err := ParseBytes(v.Value)
	return n, err == nil
}

// ParseBytes parses a size as in the configuration, such as 10Gi, 500M or 4096.
func ParseBytes(s string) (int64, error) {
	m := amount.FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("%q: must be %s", s, bytesRule)
	}
	unit, ok := suffixes[m[2]]
	n, err := strconv.ParseInt(m[1], 10, 64)
	if !ok || err != nil || n > (1<<62)/unit {
		return 0, fmt.Errorf("%q: must be %s", s, bytesRule)
	}
	return n * unit, nil
}

func given(n *yaml.Node) string {
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Tag == "!!null" {
			return "null"
		}
		return n.Value
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "*" + n.Value
	default: // documents are never values
		return ""
	}
}

func keys(known map[string]func(string, *yaml.Node)) string {
	names := make([]string, 0, len(known))
	for k := range known {
		names = append(names, k)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
