package lvmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
)

// ErrOrphans is matched by errors of New and of Reload that refuse a
// configuration under which volumes that exist would belong nowhere.
var ErrOrphans = errors.New("volumes would be orphaned")

// tie is what must stay of a device class while it has volumes.
type tie struct {
	Groups []string      `json:"groups"`
	Type   config.Layout `json:"type"`
	Medium config.Medium `json:"medium"`
	// Pool is the thin pool's name; empty for other classes.
	Pool string `json:"pool,omitempty"`
}

// ties are those of device classes, by name. The journal keeps those of the
// configuration that was last in force, so that a start refuses what a reload
// refuses, and takes again what was once taken.
type ties map[string]tie

func tiesOf(c *config.Config) ties {
	t := ties{}
	for i := range c.Classes {
		dc := &c.Classes[i]
		one := tie{Groups: dc.VolumeGroups, Type: dc.Type, Medium: dc.Medium}
		if dc.Thin != nil {
			one.Pool = dc.Thin.Pool
		}
		t[dc.Name] = one
	}
	return t
}

// member says which class a volume is in, and where it lies.
type member struct{ class, group string }

// orphans refuses a configuration in which volumes that exist have no place:
// their class is gone, is not in their volume group any more, or is laid out in
// another way. Those that had none before are no reason.
func orphans(before ties, c *config.Config, members []member) error {
	after, reasons := tiesOf(c), map[string]int{}
	for _, v := range members {
		was, known := before[v.class]
		is, stays := after[v.class]
		switch {
		case !known:
			// It is one already.
		case !stays:
			reasons[fmt.Sprintf("device class %q is gone", v.class)]++
		case !slices.Contains(is.Groups, v.group) && slices.Contains(was.Groups, v.group):
			reasons[fmt.Sprintf("device class %q is not in volume group %q any more", v.class, v.group)]++
		case is.Type != was.Type:
			reasons[fmt.Sprintf("device class %q is of type %s, no more %s", v.class, is.Type, was.Type)]++
		case is.Medium != was.Medium:
			reasons[fmt.Sprintf("device class %q is on %s, no more on %s", v.class, is.Medium, was.Medium)]++
		case is.Pool != was.Pool:
			reasons[fmt.Sprintf("device class %q is in thin pool %q, no more in %q", v.class, is.Pool, was.Pool)]++
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

// members are the volumes there are. The caller holds the lock.
func (m *model) members() []member {
	var all []member
	for _, v := range m.volumes {
		if v.rec.Phase != deleting { // What is left of one needs no class.
			all = append(all, member{v.rec.Ident.Class, v.group.name})
		}
	}
	return all
}

// refuseOrphans is what orphans is for a reload, at a start: before anything is
// changed for the sake of the configuration. Volumes of groups that are missing
// count, as nobody knows that they are gone. Without a memory of the
// configuration before there is nothing to hold this one against yet.
func (s *Service) refuseOrphans(ctx context.Context, c *config.Config, before ties, records map[string]record) error {
	err := orphans(before, c, membersOf(records, nil))
	if err == nil {
		return nil
	}
	// Somebody may have removed them while no lvmd ran.
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

// membersOf are the volumes that the journal knows, but for those that are not
// in their group although that was found.
func membersOf(records map[string]record, found []lvm.Group) []member {
	var all []member
	for _, r := range records {
		i := slices.IndexFunc(found, func(g lvm.Group) bool { return g.Name == r.Group })
		gone := i >= 0 && !slices.ContainsFunc(found[i].Volumes, func(lv lvm.Volume) bool { return lv.Name == r.ID })
		if r.Phase != deleting && !gone {
			all = append(all, member{r.Ident.Class, r.Group})
		}
	}
	return all
}

// refuseStrangers is refuseOrphans without a memory of the configuration before:
// what that was is told by the volumes in the groups that were found, and by what
// records there are.
func refuseStrangers(c *config.Config, records map[string]record, found []lvm.Group) error {
	members, all := membersOf(records, found), map[string]*traces{}
	of := func(v member) *traces {
		if all[v.class] == nil {
			all[v.class] = &traces{}
		}
		all[v.class].groups = append(all[v.class].groups, v.group)
		return all[v.class]
	}
	for _, v := range members {
		of(v)
	}
	for i := range found {
		g := &found[i]
		for j := range g.Volumes {
			lv := &g.Volumes[j]
			ident, err := identityFromTags(lv.Tags)
			if !isOurs(lv.Tags) || err != nil || records[lv.Name].Phase == deleting {
				continue
			}
			v := member{ident.Class, g.Name}
			if _, known := records[lv.Name]; !known {
				members = append(members, v)
			}
			of(v).see(&ident, lv)
		}
	}
	before, now := ties{}, tiesOf(c)
	for class, t := range all {
		before[class] = t.tie(now[class])
	}
	return orphans(before, c, members)
}

// traces are what the volumes of a class tell of it.
type traces struct {
	groups, pools []string
	types         []config.Layout
	media         []config.Medium
}

func (t *traces) see(ident *identity, lv *lvm.Volume) {
	layout := config.Layout(lv.Layout.Type)
	switch {
	case lv.Pool != "":
		t.types, t.pools = append(t.types, config.Thin), append(t.pools, lv.Pool)
	case lv.Layout.IsLinear():
		t.types = append(t.types, config.Linear)
	case layout == config.Striped || layout.IsRAID():
		t.types = append(t.types, layout)
	}
	switch {
	case ident.DAX:
		t.media = append(t.media, config.PMEM)
	case !ident.Block:
		t.media = append(t.media, config.Disk)
	}
}

// tie is what the class was, as far as the volumes contradict what it is now.
// One that agrees is enough: an administrator may have converted others.
func (t *traces) tie(now tie) tie {
	now.Groups = t.groups
	now.Type, now.Medium, now.Pool = unless(t.types, now.Type), unless(t.media, now.Medium), unless(t.pools, now.Pool)
	return now
}

// unless is what is, unless others were seen and it was not.
func unless[T comparable](seen []T, is T) T {
	if len(seen) == 0 || slices.Contains(seen, is) {
		return is
	}
	return seen[0]
}

var keyTies = []byte("classes")

// putTies stores ties in place of earlier ones.
func putTies(tx *bbolt.Tx, t ties) error {
	b, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("device classes: %w", err)
	}
	return tx.Bucket(bucketMeta).Put(keyTies, b)
}

// ties are those that were stored; nil when there are none, or none that can be
// understood.
func (j *journal) ties() (t ties, err error) {
	err = j.db.View(func(tx *bbolt.Tx) error {
		if json.Unmarshal(tx.Bucket(bucketMeta).Get(keyTies), &t) != nil {
			t = nil
		}
		return nil
	})
	return t, err
}
