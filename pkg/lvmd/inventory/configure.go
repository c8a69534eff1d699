package inventory

import (
	"slices"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// Configure sets the first configuration, and returns its groups once each, in its order. pins
// identify the groups, by name.
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

// Recall restores what the journal has; scans then compare it with the disks. Records of groups
// that are no longer configured stay in the journal.
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

// Config returns the configuration in force.
func (m *Inventory) Config() *config.Config {
	m.lock()
	defer m.unlock()
	return m.config
}

// Member names the class and the group of a volume.
type Member struct{ Class, Group string }

// Members returns those of all volumes but tombstones, which need no class.
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

// Groups returns the groups that LVM knows, as last scanned.
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

// Reconfigure replaces the configuration by one with the same groups and thin pools. Watchers get
// the full state again. placements has, as far as known, the layout of groups that become placed.
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

// Refuse sets the reason why the configuration file is not in force, which every class then
// reports; empty clears it, as Reconfigure does.
func (m *Inventory) Refuse(reason string) {
	m.lock()
	defer m.unlock()
	if m.refused != reason {
		m.refused = reason
		m.republish()
	}
}

// ListedUUIDs returns the UUIDs that a configuration allows for a group; none means any.
func ListedUUIDs(c *config.Config, group string) []string {
	var listed []string
	for i := range c.Classes {
		if slices.Contains(c.Classes[i].VolumeGroups, group) {
			listed = append(listed, c.Classes[i].VolumeGroupUUIDs...)
		}
	}
	return listed
}
