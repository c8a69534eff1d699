package config

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MinLoopFile is the smallest loop file, in bytes.
const MinLoopFile = 64 << 20

// VolumeGroup is a volume group that lvmd makes and grows.
type VolumeGroup struct {
	// Name is unique in the file.
	Name   string
	Medium Medium
	// Devices are alternatives: the group takes every device that matches one. Exactly one of
	// Devices and LoopFile is set.
	Devices []DeviceSelector
	// LoopFile replaces a disk; it may be nil.
	LoopFile *LoopFile
	// AllowSignatures are paths of devices to take despite their contents, which are
	// destroyed.
	AllowSignatures []string

	file string
	at   position
	path string
}

// DeviceSelector selects block devices that meet all of its conditions, at least one.
type DeviceSelector struct {
	// Path is a pattern for the device's path, or empty.
	Path string
	// ByID is a pattern for a name under /dev/disk/by-id, or empty.
	ByID string
	// Model is a pattern for the model, or empty.
	Model string
	// MinSize and MaxSize bound the size in bytes; zero means no bound.
	MinSize, MaxSize int64
	// Rotational is the kernel's flag, or nil for any.
	Rotational *bool
	// InstanceStore selects the local NVMe disks of cloud machines.
	InstanceStore bool
}

// DeviceFilter passes devices that Allow selects, or all if it is empty, except those that
// Deny selects.
type DeviceFilter struct {
	Allow, Deny []DeviceSelector
}

// IsEmpty reports whether the filter passes all devices.
func (f *DeviceFilter) IsEmpty() bool { return len(f.Allow) == 0 && len(f.Deny) == 0 }

// LoopFile is a file used as a disk.
type LoopFile struct {
	// Path is absolute.
	Path string
	// Size is in bytes, at least MinLoopFile.
	Size int64
}

// Problem reports the volume group after parsing.
func (g *VolumeGroup) Problem(given, reason string) Problems {
	return Problems{{File: g.file, Line: g.at.line, Column: g.at.column, Key: g.path, Given: given, Reason: reason}}
}

// Group returns the configuration of a volume group, or nil if lvmd does not make it.
func (c *Config) Group(name string) *VolumeGroup {
	for i := range c.VolumeGroups {
		if c.VolumeGroups[i].Name == name {
			return &c.VolumeGroups[i]
		}
	}
	return nil
}

func (p *parser) volumeGroups(c *Config, key string, v *yaml.Node) {
	if v.Kind != yaml.SequenceNode || len(v.Content) == 0 {
		p.report(v, key, given(v), "must be a list of at least one volume group")
		return
	}
	for i, item := range v.Content {
		g := p.volumeGroup(fmt.Sprintf("%s[%d]", key, i), item)
		for j, other := range c.VolumeGroups {
			if g.Name != "" && g.Name == other.Name {
				p.report(item, g.path+".name", g.Name, fmt.Sprintf("the name of volumeGroups[%d] already; names must differ", j))
			}
			if g.LoopFile != nil && other.LoopFile != nil && g.LoopFile.Path == other.LoopFile.Path {
				p.report(item, g.path+".loopFile.path", g.LoopFile.Path, fmt.Sprintf("the file of volumeGroups[%d] already; files must differ", j))
			}
		}
		c.VolumeGroups = append(c.VolumeGroups, g)
	}
}

func (p *parser) volumeGroup(key string, n *yaml.Node) VolumeGroup {
	g := VolumeGroup{Medium: Disk, file: p.file, at: position{n.Line, n.Column}, path: key}
	p.fields(n, key, map[string]func(string, *yaml.Node){
		"name": func(k string, v *yaml.Node) { g.Name, _ = p.groupNameOf(k, v) },
		"medium": func(k string, v *yaml.Node) {
			g.Medium = Medium(p.oneOf(k, v, string(Disk), string(PMEM)))
		},
		"devices":  func(k string, v *yaml.Node) { g.Devices = p.selectors(k, v) },
		"loopFile": func(k string, v *yaml.Node) { g.LoopFile = p.loopFile(k, v) },
		"allowSignatures": func(k string, v *yaml.Node) {
			if v.Kind != yaml.SequenceNode {
				p.report(v, k, given(v), "must be a list of device paths")
				return
			}
			for i, item := range v.Content {
				k := fmt.Sprintf("%s[%d]", k, i)
				if !isDevicePath(item) || strings.ContainsAny(item.Value, `*?[\`) {
					p.report(item, k, given(item), "must be the path of one device below /dev, without wildcards")
					continue
				}
				g.AllowSignatures = append(g.AllowSignatures, item.Value)
			}
		},
	}, "name")
	if n.Kind != yaml.MappingNode {
		return g
	}
	has := func(key string) bool {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				return true
			}
		}
		return false
	}
	switch {
	case has("devices") && has("loopFile"):
		p.report(n, key+".loopFile", "", "given together with devices; exactly one of them is allowed")
	case !has("devices") && !has("loopFile"):
		p.report(n, key+".devices", "", "missing; it is required, or loopFile instead")
	case has("loopFile") && g.Medium == PMEM:
		p.report(n, key+".medium", string(PMEM), "a loop file is no persistent memory; allowed is disk")
	}
	return g
}

// isDevicePath reports whether a value is a clean path below /dev.
func isDevicePath(v *yaml.Node) bool {
	return v.Kind == yaml.ScalarNode && strings.HasPrefix(v.Value, "/dev/") && path.Clean(v.Value) == v.Value
}

func (p *parser) deviceFilter(key string, n *yaml.Node) (f DeviceFilter) {
	p.fields(n, key, map[string]func(string, *yaml.Node){
		"allow": func(k string, v *yaml.Node) { f.Allow = p.selectors(k, v) },
		"deny":  func(k string, v *yaml.Node) { f.Deny = p.selectors(k, v) },
	})
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		p.report(n, key, "", "must have allow, deny or both")
	}
	return f
}

func (p *parser) selectors(key string, v *yaml.Node) (all []DeviceSelector) {
	if v.Kind != yaml.SequenceNode || len(v.Content) == 0 {
		p.report(v, key, given(v), "must be a list of at least one device selector")
		return nil
	}
	for i, item := range v.Content {
		all = append(all, p.selector(fmt.Sprintf("%s[%d]", key, i), item))
	}
	return all
}

func (p *parser) selector(key string, n *yaml.Node) DeviceSelector {
	var s DeviceSelector
	pattern := func(into *string, ok func(*yaml.Node) bool, rule string) func(string, *yaml.Node) {
		return func(k string, v *yaml.Node) {
			if v.Kind == yaml.ScalarNode && ok(v) {
				if _, err := path.Match(v.Value, ""); err == nil {
					*into = v.Value
					return
				}
			}
			p.report(v, k, given(v), rule)
		}
	}
	p.fields(n, key, map[string]func(string, *yaml.Node){
		"path": pattern(&s.Path, isDevicePath, "must be a path below /dev; * ? and [...] match within one name"),
		"byID": pattern(&s.ByID, func(v *yaml.Node) bool { return v.Value != "" && !strings.Contains(v.Value, "/") },
			"must be a name in /dev/disk/by-id, without the directory; * ? and [...] are allowed"),
		"model": pattern(&s.Model, func(v *yaml.Node) bool { return v.Value != "" }, "must be a model; * ? and [...] are allowed"),
		"size":  func(k string, v *yaml.Node) { p.sizeRange(&s, k, v) },
		"rotational": func(k string, v *yaml.Node) {
			if b, ok := p.boolean(k, v); ok {
				s.Rotational = &b
			}
		},
		"instanceStore": func(k string, v *yaml.Node) {
			b, ok := p.boolean(k, v)
			if ok && !b {
				p.report(v, k, given(v), "allowed is true; leave the key out otherwise")
			}
			s.InstanceStore = b
		},
	})
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		p.report(n, key, "", "selects every device; at least one condition is required")
	}
	return s
}

func (p *parser) sizeRange(s *DeviceSelector, key string, n *yaml.Node) {
	bound := func(into *int64) func(string, *yaml.Node) {
		return func(k string, v *yaml.Node) {
			n, ok := parseBytes(v)
			if !ok || n < 1 {
				p.report(v, k, given(v), "must be "+bytesRule+", and at least 1")
				return
			}
			*into = n
		}
	}
	p.fields(n, key, map[string]func(string, *yaml.Node){"min": bound(&s.MinSize), "max": bound(&s.MaxSize)})
	switch {
	case n.Kind == yaml.MappingNode && len(n.Content) == 0:
		p.report(n, key, "", "must have min, max or both")
	case s.MaxSize > 0 && s.MinSize > s.MaxSize:
		p.report(n, key, "", fmt.Sprintf("min, %d bytes, is more than max, %d", s.MinSize, s.MaxSize))
	}
}

func (p *parser) loopFile(key string, n *yaml.Node) *LoopFile {
	l := &LoopFile{}
	p.fields(n, key, map[string]func(string, *yaml.Node){
		"path": func(k string, v *yaml.Node) {
			if v.Kind != yaml.ScalarNode || !path.IsAbs(v.Value) || path.Clean(v.Value) != v.Value || v.Value == "/" || strings.HasPrefix(v.Value, "/dev/") {
				p.report(v, k, given(v), "must be the absolute path of a file, not below /dev")
				return
			}
			l.Path = v.Value
		},
		"size": func(k string, v *yaml.Node) {
			size, ok := parseBytes(v)
			if !ok || size < MinLoopFile || size%(1<<20) != 0 {
				p.report(v, k, given(v), "must be "+bytesRule+", a multiple of 1Mi and at least 64Mi")
				return
			}
			l.Size = size
		},
	}, "path", "size")
	return l
}

// groupUse checks that each group has a class and suits its classes.
func (p *parser) groupUse(c *Config) {
	for i := range c.VolumeGroups {
		g := &c.VolumeGroups[i]
		if g.Name != "" && !slices.ContainsFunc(c.Classes, func(dc DeviceClass) bool { return slices.Contains(dc.VolumeGroups, g.Name) }) {
			p.problems = append(p.problems, g.Problem(g.Name, "no device class uses this volume group")...)
		}
	}
	for i := range c.Classes {
		dc := &c.Classes[i]
		for _, name := range dc.VolumeGroups {
			if g := c.Group(name); g != nil && len(dc.VolumeGroupUUIDs) > 0 {
				p.problems = append(p.problems, dc.Problem("volumeGroupUUIDs", strings.Join(dc.VolumeGroupUUIDs, ", "),
					fmt.Sprintf("lvmd makes volume group %q (%s), and chooses its UUID; allowed is one of the two", name, g.path))...)
			}
			if g := c.Group(name); g != nil && dc.Medium == PMEM && g.Medium != PMEM {
				p.problems = append(p.problems, dc.Problem("medium", string(PMEM),
					fmt.Sprintf("volume group %q has another medium; set medium: pmem on %s, too", name, g.path))...)
			}
		}
	}
}

func (p *parser) boolean(key string, v *yaml.Node) (value, ok bool) {
	if v.Kind != yaml.ScalarNode || v.Value != "true" && v.Value != "false" {
		p.report(v, key, given(v), "must be true or false")
		return false, false
	}
	return v.Value == "true", true
}
