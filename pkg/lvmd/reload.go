package lvmd

import (
	"errors"
	"reflect"
	"slices"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
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
	placements := s.placementsFor(c) // A disk that answers late is to hold up nothing else.
	// No volume may be made between the look at those there are and the end.
	s.admission.Lock()
	defer s.admission.Unlock()
	if s.isStopping() {
		return apierror.ErrStopping
	}
	was := s.inventory.Config()
	if err := orphans(bindingsOf(was), c, s.inventory.Members()); err != nil {
		return err
	}
	if !reflect.DeepEqual(madeOf(was), madeOf(c)) || !reflect.DeepEqual(was.Devices, c.Devices) || !slices.EqualFunc(was.VolumeGroups, c.VolumeGroups, config.VolumeGroup.Same) {
		return ErrNeedsStart
	}
	if err := checkGroups(c, s.inventory.Groups()); err != nil {
		return err
	}
	if err := s.journal.Update(func(tx *journal.Tx) error { return tx.PutBindings(bindingsOf(c)) }); err != nil {
		return err
	}
	s.inventory.Reconfigure(c, placements)
	return nil
}

// madeOf returns what only a start looks for and makes: by volume group, its UUIDs, and by group and class, the thin pool.
func madeOf(c *config.Config) map[string]any {
	made := map[string]any{}
	for _, dc := range c.Classes {
		for _, name := range dc.VolumeGroups {
			made[name] = inventory.ListedUUIDs(c, name)
			if dc.Thin != nil {
				made[name+"/"+dc.Name] = dc.Thin
			}
		}
	}
	return made
}

// placementsFor reads where everything lies in the groups in which lvmd chooses that under a
// configuration, as far as it can be read.
func (s *Service) placementsFor(c *config.Config) map[string]ondisk.Placement {
	all := map[string]ondisk.Placement{}
	for _, dc := range c.Classes {
		if layout.Type(dc.Type) == layout.Linear {
			continue
		}
		for _, name := range dc.VolumeGroups {
			if p, err := s.lvm.Placement(name); err == nil {
				all[name] = p
			}
		}
	}
	return all
}

// Refuse notes that the configuration file holds what cannot be taken over, and
// why: every class says so until a configuration is taken over. An empty reason
// takes it back.
func (s *Service) Refuse(reason string) { s.inventory.Refuse(reason) }
