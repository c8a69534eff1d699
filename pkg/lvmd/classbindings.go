package lvmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// ErrOrphans matches errors of New and Reload that reject a configuration because existing
// volumes would lose their class or group.
var ErrOrphans = errors.New("volumes would be orphaned")

func bindingsOf(c *config.Config) journal.Bindings {
	all := journal.Bindings{}
	for i := range c.Classes {
		dc := &c.Classes[i]
		one := journal.Binding{Groups: dc.VolumeGroups, Type: dc.Type, Medium: dc.Medium}
		if dc.Thin != nil {
			one.Pool = dc.Thin.Pool
		}
		all[dc.Name] = one
	}
	return all
}

// orphans rejects a configuration that removes an existing volume's class, takes the class out
// of the volume's group, or changes its layout. Volumes without a known class before do not
// count.
func orphans(before journal.Bindings, c *config.Config, members []inventory.Member) error {
	after, reasons := bindingsOf(c), map[string]int{}
	for _, v := range members {
		was, known := before[v.Class]
		is, stays := after[v.Class]
		switch {
		case !known:
			// It is an orphan already.
		case !stays:
			reasons[fmt.Sprintf("device class %q is gone", v.Class)]++
		case !slices.Contains(is.Groups, v.Group) && slices.Contains(was.Groups, v.Group):
			reasons[fmt.Sprintf("device class %q is not in volume group %q any more", v.Class, v.Group)]++
		case is.Type != was.Type:
			reasons[fmt.Sprintf("device class %q is of type %s, no more %s", v.Class, is.Type, was.Type)]++
		case is.Medium != was.Medium:
			reasons[fmt.Sprintf("device class %q is on %s, no more on %s", v.Class, is.Medium, was.Medium)]++
		case is.Pool != was.Pool:
			reasons[fmt.Sprintf("device class %q is in thin pool %q, no more in %q", v.Class, is.Pool, was.Pool)]++
		}
	}
	if len(reasons) == 0 {
		return nil
	}
	var all []string
	for reason, n := range reasons {
		if all = append(all, fmt.Sprintf("%s, but has %d volumes", reason, n)); n == 1 {
			all[len(all)-1] = reason + ", but has 1 volume"
		}
	}
	slices.Sort(all)
	return fmt.Errorf("%w: %s; take that back, or delete the volumes under the configuration before", ErrOrphans, strings.Join(all, "; "))
}

// refuseOrphans runs before the start changes anything. Volumes of missing groups count, since
// they may still exist. Without recorded bindings no volume counts.
func (s *Service) refuseOrphans(ctx context.Context, c *config.Config, before journal.Bindings, records map[string]spec.Record) error {
	err := orphans(before, c, membersOf(records, nil))
	if err == nil {
		return nil
	}
	// An administrator may have removed the volumes while lvmd was stopped.
	var groups []string
	for _, r := range records {
		groups = append(groups, r.Group)
	}
	slices.Sort(groups)
	groups = slices.Compact(groups)
	found, scanErr := s.lvm.Scan(ctx, groups)
	if scanErr != nil {
		return fmt.Errorf("%w (scanning the volume groups %s: %w)", err, strings.Join(groups, ", "), scanErr)
	}
	return orphans(before, c, membersOf(records, found))
}

// membersOf returns the journal's volumes, except those absent from a group in found.
func membersOf(records map[string]spec.Record, found []lvm.Group) []inventory.Member {
	var all []inventory.Member
	for _, r := range records {
		i := slices.IndexFunc(found, func(g lvm.Group) bool { return g.Name == r.Group })
		gone := i >= 0 && !slices.ContainsFunc(found[i].Volumes, func(lv lvm.Volume) bool { return lv.Name == r.ID })
		if r.Phase != spec.Deleting && !gone {
			all = append(all, inventory.Member{Class: r.Ident.Class, Group: r.Group})
		}
	}
	return all
}

// refuseUnknownClasses replaces refuseOrphans if the journal has no bindings: tags and records
// show the former classes and groups, but not the layout, which counts as unchanged.
func refuseUnknownClasses(c *config.Config, records map[string]spec.Record, found []lvm.Group) error {
	members := membersOf(records, found)
	for i := range found {
		for _, lv := range found[i].Volumes {
			ident, err := spec.FromTags(lv.Tags)
			if _, known := records[lv.Name]; !known && spec.AreOurs(lv.Tags) && err == nil {
				members = append(members, inventory.Member{Class: ident.Class, Group: found[i].Name})
			}
		}
	}
	before := bindingsOf(c)
	for _, v := range members {
		b := before[v.Class]
		b.Groups = append(slices.Clip(b.Groups), v.Group)
		before[v.Class] = b
	}
	return orphans(before, c, members)
}
