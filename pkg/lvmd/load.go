package lvmd

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// load activates the volumes, and finishes or undoes interrupted operations. journaled is false
// for a new journal.
func (s *Service) load(ctx context.Context, o *Options, journaled bool) error {
	c := o.Config
	records, err := s.journal.Volumes()
	if err != nil {
		return err
	}
	states, err := s.journal.Groups()
	if err != nil {
		return err
	}
	before, err := s.journal.Bindings()
	if err != nil {
		return err
	}
	names, err := s.groups.Configure(c, states)
	if err != nil {
		return err
	}
	// Scans compare what they find with these.
	remembered := map[string]inventory.Remembered{}
	for name, state := range states {
		remembered[name] = inventory.Remembered(state)
	}
	s.inventory.Recall(records, remembered)
	if err := s.refuseOrphans(ctx, c, before, records); err != nil {
		return err
	}
	if err := s.provisioner.AtStart(ctx, c); err != nil {
		return err
	}
	found, err := s.groups.ScanAtStart(ctx, names)
	if err != nil {
		return fmt.Errorf("scanning the volume groups %s: %w", strings.Join(names, ", "), err)
	}
	if before == nil {
		if err := refuseUnknownClasses(c, records, found); err != nil {
			return err
		}
	}
	if err := checkGroups(c, found); err != nil {
		if o.Changed {
			return err
		}
		s.log.Error("a device class does not fit its volume group; nothing is made in it, and the others are served", "error", err)
	}
	if found, err = poolsAtStart(s.core, cmp.Or(o.poolRetry, poolRetry)).MakeAtStart(ctx, c, names, found); err != nil {
		return err
	}
	if found, err = s.groups.Activate(ctx, names, found); err != nil {
		return err
	}
	if !journaled {
		if n := countOurs(found); n > 0 {
			s.log.Warn("there is no journal; it is rebuilt from the volumes' tags", "volumes", n)
		}
	}
	if err := s.groups.Load(found); err != nil {
		return err
	}
	for _, p := range s.inventory.Pools(nil) {
		s.pools.look(p)
	}
	if now := bindingsOf(c); !reflect.DeepEqual(now, before) {
		return s.journal.Update(func(tx *journal.Tx) error { return tx.PutBindings(now) })
	}
	return nil
}

// checkGroups accepts missing groups: their disks may have failed, be late or still be unused.
// Their classes get a condition and work once the group appears.
func checkGroups(c *config.Config, found []lvm.Group) error {
	var problems config.Problems
	for i := range c.Classes {
		for j := range found {
			if slices.Contains(c.Classes[i].VolumeGroups, found[j].Name) {
				problems = append(problems, inventory.Unfit(&c.Classes[i], &found[j])...)
			}
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return problems
}

func countOurs(found []lvm.Group) int {
	n := 0
	for _, g := range found {
		for _, lv := range g.Volumes {
			if spec.AreOurs(lv.Tags) {
				n++
			}
		}
	}
	return n
}
