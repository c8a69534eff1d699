package config

import (
	"fmt"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v3"
)

// groupName also matches "." and "..", which are not names.
var groupName = regexp.MustCompile(`^[A-Za-z0-9+_.][A-Za-z0-9+_.-]{0,126}$`)

const groupNameRule = "must be a volume group's name: 1 to 127 of letters, digits and '+_.-', not beginning with '-'"

func (p *parser) groupNameOf(key string, v *yaml.Node) (string, bool) {
	if v.Kind != yaml.ScalarNode || !groupName.MatchString(v.Value) || v.Value == "." || v.Value == ".." {
		p.report(v, key, given(v), groupNameRule)
		return "", false
	}
	return v.Value, true
}

func (p *parser) classGroups(c *DeviceClass, key string, v *yaml.Node, list bool) {
	items, name := []*yaml.Node{v}, func(int) string { return key }
	if list {
		if v.Kind != yaml.SequenceNode || len(v.Content) == 0 {
			p.report(v, key, given(v), "must be a list of at least one volume group's name")
			return
		}
		items, name = v.Content, func(i int) string { return fmt.Sprintf("%s[%d]", key, i) }
	}
	for i, item := range items {
		group, ok := p.groupNameOf(name(i), item)
		switch {
		case !ok:
		case slices.Contains(c.VolumeGroups, group):
			p.report(item, name(i), group, "given twice")
		default:
			c.VolumeGroups = append(c.VolumeGroups, group)
		}
	}
}

var groupUUID = regexp.MustCompile(`^[A-Za-z0-9]{6}(-[A-Za-z0-9]{4}){5}-[A-Za-z0-9]{6}$`)

func (p *parser) groupUUIDs(c *DeviceClass, key string, v *yaml.Node) {
	if v.Kind != yaml.SequenceNode || len(v.Content) == 0 {
		p.report(v, key, given(v), "must be a list of at least one volume group's UUID")
		return
	}
	for i, item := range v.Content {
		if item.Kind != yaml.ScalarNode || !groupUUID.MatchString(item.Value) {
			p.report(item, fmt.Sprintf("%s[%d]", key, i), given(item),
				"must be a volume group's UUID as `vgs -o +vg_uuid` shows it: groups of 6, 4, 4, 4, 4, 4 and 6 letters and digits, with '-' between")
			continue
		}
		c.VolumeGroupUUIDs = append(c.VolumeGroupUUIDs, item.Value)
	}
}

// oneKindOfGroups requires exactly one of the two keys.
func (p *parser) oneKindOfGroups(c *DeviceClass, n *yaml.Node, path string) {
	if n.Kind != yaml.MappingNode {
		return
	}
	_, one := c.positions["volumeGroup"]
	_, several := c.positions["volumeGroups"]
	switch {
	case one && several:
		p.report(n, path+".volumeGroups", "", "given together with volumeGroup; exactly one of them is allowed")
	case !one && !several:
		p.report(n, path+".volumeGroup", "", "missing; it is required, or volumeGroups instead")
	}
}
