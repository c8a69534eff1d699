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

// ErrNeedsStart means that the configuration is valid for the existing volumes, but only a new
// Service can apply it.
var ErrNeedsStart = errors.New("the configuration needs a new start of the service")

// Reload applies a configuration as a whole or not at all. Volumes and operations in flight
// continue. Watchers get the full state again.
//
// It returns ErrOrphans if volumes would be orphaned, config.Problems if a volume group does not
// fit, and ErrNeedsStart if volume groups or thin pools would come, go or change. It also fails
// if the journal cannot record the configuration.
func (s *Service) Reload(c *config.Config) error {
	placements := s.placementsFor(c) // Read the disks before locking: one may be slow.
	// No volume may be created between the check of the members and the end.
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

// madeOf returns what only a start applies: UUIDs by volume group, thin pools by group and
// class.
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

// placementsFor covers groups in which lvmd chooses the extents, and skips those that it cannot
// read.
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

// Refuse makes every class report why the configuration file was rejected, until Reload
// succeeds or reason is empty.
func (s *Service) Refuse(reason string) { s.inventory.Refuse(reason) }
