package lvmd

import (
	"cmp"
	"errors"
	"reflect"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
)

// ErrNeedsStart is returned by Reload for a configuration that is fit for the
// volumes there are, but that only a new Service can take over.
var ErrNeedsStart = errors.New("the configuration needs a new start of the service")

// Reload takes over a configuration, all of it or nothing. Volumes and
// operations under way go on. Watchers get the full state again.
//
// A configuration under which volumes would be orphaned is refused with
// ErrOrphans. One that the volume groups are not fit for is refused with
// config.Problems, and none is taken over that cannot be noted in the journal.
// One that brings or takes volume groups, or thin pools, is not taken over, with
// ErrNeedsStart.
func (s *Service) Reload(c *config.Config) error {
	if s.isStopping() {
		return errStopping
	}
	m, locked := s.model, false
	defer func() {
		if locked {
			m.mu.Unlock()
		}
	}()
	var refused error
	// No volume may be made between the look at those there are and the end.
	// Whoever has both locks took the journal's first.
	err := s.journal.do(func(tx *bbolt.Tx) error {
		m.mu.Lock()
		locked = true
		if refused = m.refuses(c); refused != nil {
			return refused
		}
		return putTies(tx, tiesOf(c))
	})
	if err = cmp.Or(refused, err); err != nil {
		return err
	}
	m.config, m.refused = c, ""
	m.classes = nil
	for _, dc := range c.Classes {
		c := &class{DeviceClass: dc, wiping: limiter(dc.WipeRate), copying: limiter(dc.CopyRate)}
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

// refuses says why a configuration is not taken over, or nothing. The caller
// holds the lock.
func (m *model) refuses(c *config.Config) error {
	if err := orphans(tiesOf(m.config), c, m.members()); err != nil {
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
	return checkGroups(c, found, m.missing())
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
	m.removals, m.horizon = nil, m.generation // Who resumes gets everything, too.
	for w := range m.watchers {
		w.markFull()
	}
}

// sameGroups reports whether a configuration has the volume groups of the present one,
// looks for them on the same devices, and makes the same in them. The caller holds the
// lock.
func (m *model) sameGroups(c *config.Config) bool {
	groups, pools := map[string]bool{}, map[string]*config.ThinPool{}
	for _, dc := range c.Classes {
		for _, name := range dc.VolumeGroups {
			if m.groups[name] == nil {
				return false
			}
			if !slices.Equal(listedUUIDs(m.config, name), listedUUIDs(c, name)) {
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
	return len(groups) == len(m.groups) && reflect.DeepEqual(m.config.Devices, c.Devices) && slices.EqualFunc(m.config.VolumeGroups, c.VolumeGroups, config.VolumeGroup.Same)
}
