package inventory

import (
	"slices"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// Configure makes the classes and groups of the first configuration, and returns the groups, each
// once, in the configuration's order. pins are what they are known by, by name.
func (m *Inventory) Configure(c *config.Config, pins map[string]lvm.Identity) []*Group {
	m.lock()
	defer m.unlock()
	m.config = c
	var groups []*Group
	for _, dc := range c.Classes {
		for _, name := range dc.VolumeGroups {
			if m.groups[name] == nil {
				m.groups[name] = newGroup(m.model, name)
				m.groups[name].pinned = pins[name]
				groups = append(groups, m.groups[name])
			}
		}
		m.classes = append(m.classes, newClass(dc, m.groups))
	}
	m.attachPools()
	for _, g := range m.groups {
		m.markPlaced(g)
	}
	return groups
}

// Recall takes in what the journal has, which the scans that follow compare with the disks.
// Records of groups that are not configured now are left in the journal.
func (m *Inventory) Recall(records map[string]spec.Record, groups map[string]Remembered) {
	m.lock()
	defer m.unlock()
	for name, r := range groups {
		if g := m.groups[name]; g != nil {
			g.info.UUID, g.metadata.Seqno = r.UUID, r.Seqno
			g.zeroes.Add(r.Zeroed)
		}
	}
	for _, r := range records {
		g := m.groups[r.Group]
		if g == nil {
			m.warn("volume's group is not configured any more; it is left alone", "volume", r.ID, "group", r.Group)
			continue
		}
		m.add(&Volume{recorded: recorded{r}, group: g}, recalled(r.Phase))
	}
}

// Config is the configuration in force.
func (m *Inventory) Config() *config.Config {
	m.lock()
	defer m.unlock()
	return m.config
}

// Member is the class that a volume is in, and the group that it lies in.
type Member struct{ Class, Group string }

// Members are those of all volumes. What is left of a deleted one needs no class.
func (m *Inventory) Members() []Member {
	m.lock()
	defer m.unlock()
	var all []Member
	for _, v := range m.volumes {
		if v.rec.Phase != spec.Deleting {
			all = append(all, Member{v.rec.Ident.Class, v.group.name})
		}
	}
	return all
}

// Groups are the groups as last scanned, without those that LVM does not know.
func (m *Inventory) Groups() (found []lvm.Group) {
	m.lock()
	defer m.unlock()
	for _, g := range m.groups {
		if g.present {
			found = append(found, g.info)
		}
	}
	return found
}

// Reconfigure takes over another configuration of the same groups and thin pools. Watchers get the full state
// again. placements are where everything lies in groups in which lvmd may have to choose that from
// now on, as far as it is known.
func (m *Inventory) Reconfigure(c *config.Config, placements map[string]ondisk.Placement) {
	m.lock()
	defer m.unlock()
	m.config, m.refused = c, ""
	m.classes = nil
	for _, dc := range c.Classes {
		m.classes = append(m.classes, newClass(dc, m.groups))
	}
	m.attachPools()
	m.replaceGroups(placements)
	m.republish()
}

// Refuse notes that the configuration file holds what cannot be taken over, and
// why: every class says so until a configuration is taken over. An empty reason
// takes it back.
func (m *Inventory) Refuse(reason string) {
	m.lock()
	defer m.unlock()
	if m.refused != reason {
		m.refused = reason
		m.republish()
	}
}

// ListedUUIDs are the UUIDs that a configuration allows for a group; none means any.
func ListedUUIDs(c *config.Config, group string) []string {
	var listed []string
	for i := range c.Classes {
		if slices.Contains(c.Classes[i].VolumeGroups, group) {
			listed = append(listed, c.Classes[i].VolumeGroupUUIDs...)
		}
	}
	return listed
}
