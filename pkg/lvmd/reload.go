package lvmd

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
)

// ErrOrphans is matched by errors of Reload that refuse a configuration under
// which volumes that exist would belong nowhere.
var ErrOrphans = errors.New("volumes would be orphaned")

// ErrNeedsStart is returned by Reload for a configuration that is fit for the
// volumes there are, but that only a new Service can take over.
var ErrNeedsStart = errors.New("the configuration needs a new start of the service")

// Reload takes over a configuration, all of it or nothing. Volumes and
// operations under way go on. Watchers get the full state again.
//
// A configuration under which volumes would be orphaned is refused with
// ErrOrphans. One that the volume groups are not fit for is refused with
// config.Problems. One that brings or takes volume groups, or thin pools, is
// not taken over, with ErrNeedsStart.
func (s *Service) Reload(c *config.Config) error {
	m := s.model
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.isStopping() {
		return errStopping
	}
	if err := m.orphans(c); err != nil {
		return err
	}
	if !m.sameGroups(c) {
		return ErrNeedsStart
	}
	var found []lvm.Group
	for _, g := range m.groups {
		if g.present {
			found = append(found, g.info)
		}
	}
	if err := checkGroups(c, found, m.missing()); err != nil {
		return err
	}
	m.config, m.refused = c, ""
	m.classes = nil
	for _, dc := range c.Classes {
		c := &class{DeviceClass: dc, wiping: wipeLimiter(dc.WipeRate)}
		for _, name := range dc.VolumeGroups {
			c.parts = append(c.parts, &part{class: c, group: m.groups[name]})
		}
		m.classes = append(m.classes, c)
	}
	m.attachPools()
	s.replaceGroups()
	m.republish()
	return nil
}

// missing are the groups that the present configuration has and this machine has
// not: it was taken over all the same. The caller holds the lock.
func (m *model) missing() map[string]bool {
	groups := map[string]bool{}
	for name, g := range m.groups {
		groups[name] = !g.present
	}
	return groups
}

// Refuse notes that the configuration file holds what cannot be taken over, and
// why: every class says so until a configuration is taken over. An empty reason
// takes it back.
func (s *Service) Refuse(reason string) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	if s.model.refused != reason {
		s.model.refused = reason
		s.model.republish()
	}
}

// republish tells all watchers everything. The caller holds the lock.
func (m *model) republish() {
	for _, c := range m.classes {
		c.reported = m.report(c)
	}
	m.generation++
	for w := range m.watchers {
		w.markFull()
	}
}

// orphans refuses a configuration in which volumes that exist have no place:
// their class is gone, is not in their volume group any more, or is laid out in
// another way. The caller holds the lock.
func (m *model) orphans(c *config.Config) error {
	reasons := map[string]int{}
	for _, v := range m.volumes {
		if v.rec.Phase == deleting {
			continue // What is left of it needs no class.
		}
		name := v.rec.Ident.Class
		i := slices.IndexFunc(c.Classes, func(dc config.DeviceClass) bool { return dc.Name == name })
		now := m.class(name)
		switch {
		case i < 0 && now == nil:
			// It is one already.
		case i < 0:
			reasons[fmt.Sprintf("device class %q is gone", name)]++
		case now == nil || now.Name != name:
		case !slices.Contains(c.Classes[i].VolumeGroups, v.group.name) && now.in(v.group) != nil:
			reasons[fmt.Sprintf("device class %q is not in volume group %q any more", name, v.group.name)]++
		case c.Classes[i].Type != now.Type:
			reasons[fmt.Sprintf("device class %q is of type %s, no more %s", name, c.Classes[i].Type, now.Type)]++
		case c.Classes[i].Medium != now.Medium:
			reasons[fmt.Sprintf("device class %q is on %s, no more on %s", name, c.Classes[i].Medium, now.Medium)]++
		case now.Thin != nil && c.Classes[i].Thin.Pool != now.Thin.Pool:
			reasons[fmt.Sprintf("device class %q is in thin pool %q, no more in %q", name, c.Classes[i].Thin.Pool, now.Thin.Pool)]++
		}
	}
	if len(reasons) == 0 {
		return nil
	}
	var all []string
	for reason, n := range reasons {
		all = append(all, fmt.Sprintf("%s, but has %d volumes", reason, n))
	}
	slices.Sort(all)
	return fmt.Errorf("%w: %s", ErrOrphans, strings.Join(all, "; "))
}

// sameGroups tells whether a configuration has the volume groups, and what is
// made in them, of the present one. The caller holds the lock.
func (m *model) sameGroups(c *config.Config) bool {
	groups, pools := map[string]bool{}, map[string]*config.ThinPool{}
	for _, dc := range c.Classes {
		for _, name := range dc.VolumeGroups {
			if m.groups[name] == nil {
				return false
			}
			groups[name] = true
			pools[name+"/"+dc.Name] = dc.Thin
		}
	}
	for _, now := range m.classes {
		for _, p := range now.parts {
			was, ok := pools[p.group.name+"/"+now.Name]
			if now.Thin != nil && (!ok || !reflect.DeepEqual(was, now.Thin)) {
				return false
			}
			delete(pools, p.group.name+"/"+now.Name)
		}
	}
	for _, thin := range pools {
		if thin != nil {
			return false
		}
	}
	return len(groups) == len(m.groups) && slices.EqualFunc(m.config.VolumeGroups, c.VolumeGroups, config.VolumeGroup.Same)
}
