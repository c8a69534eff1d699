package lvmd

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"go.etcd.io/bbolt"
	"golang.org/x/time/rate"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
)

// pmemAlignment is the size of a huge page: mappings of PMEM files can only
// use those when volumes begin and end at multiples of it.
const pmemAlignment = 2 << 20

// load builds the model from LVM, the journal and the configuration, makes
// the volumes' devices, and settles what was interrupted. journaled is false
// when the journal is new.
func (s *Service) load(ctx context.Context, c *config.Config, journaled bool) error {
	names := s.configure(c)
	records, err := s.journal.all()
	if err != nil {
		return err
	}
	states, err := s.journal.groupStates()
	if err != nil {
		return err
	}
	before, err := s.journal.ties()
	if err != nil {
		return err
	}
	if err := s.recallPins(c, names, states); err != nil {
		return err
	}
	if err := s.refuseOrphans(ctx, c, before, records); err != nil {
		return err
	}
	if err := s.provideAtStart(ctx, c); err != nil {
		return err
	}
	found, err := s.scan(ctx, names)
	if err != nil {
		return fmt.Errorf("scanning the volume groups %s: %w", strings.Join(names, ", "), err)
	}
	if before == nil {
		if err := refuseStrangers(c, records, found); err != nil {
			return err
		}
	}
	if err := checkGroups(c, found, s.known(names, records, states)); err != nil {
		return err
	}
	if found, err = s.makePoolsAtStart(ctx, c, names, found); err != nil {
		return err
	}
	if found, err = s.activate(ctx, names, found); err != nil {
		return err
	}
	if !journaled {
		if n := countOurs(found); n > 0 {
			s.log.Warn("there is no journal; it is rebuilt from the volumes' tags", "volumes", n)
		}
	}
	devices, metadata := s.devicesOf(found), s.metadataOf(found)

	s.model.mu.Lock()
	s.model.recallGroups(states)
	s.recall(records)
	var all []news
	for _, g := range s.model.groups {
		n := s.merge(g, found, devices, metadata)
		s.model.publish(g, n.changed...)
		all = append(all, n)
	}
	s.model.mu.Unlock()
	for _, n := range all {
		if err := s.settle(n); err != nil {
			return err
		}
	}
	for _, p := range s.pools() {
		s.lookAtPool(p)
	}
	if now := tiesOf(c); !reflect.DeepEqual(now, before) {
		return s.journal.do(func(tx *bbolt.Tx) error { return putTies(tx, now) })
	}
	return nil
}

// configure makes the model's classes and groups, and returns the groups'
// names, each once, in the configuration's order.
func (s *Service) configure(c *config.Config) []string {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	s.model.config = c
	var names []string
	for _, dc := range c.Classes {
		c := &class{DeviceClass: dc, wiping: limiter(dc.WipeRate), copying: limiter(dc.CopyRate)}
		for _, name := range dc.VolumeGroups {
			g := s.model.groups[name]
			if g == nil {
				g = newGroup(name)
				s.model.groups[name] = g
				names = append(names, name)
			}
			c.parts = append(c.parts, &part{class: c, group: g})
		}
		s.model.classes = append(s.model.classes, c)
	}
	s.model.attachPools()
	for _, g := range s.model.groups {
		s.model.markPlaced(g)
	}
	return names
}

func newGroup(name string) *group {
	return &group{
		name: name, turns: newQueue(maxWaiting, maxWait),
		reap: make(chan struct{}, 1), remove: make(chan struct{}, 1), look: make(chan struct{}, 1),
		exists: map[string]bool{}, extensions: map[string]bool{}, clean: clean{}, plans: map[*volume]plan{},
		info: lvm.Group{ExtentSize: 1},
	}
}

// limiter limits wipes or copies to so many bytes per second, in steps of a tenth; zero is
// no limit.
func limiter(bytesPerSecond int64) *rate.Limiter {
	if bytesPerSecond == 0 {
		return nil
	}
	burst := min(wipeChunk, bytesPerSecond/10)
	return rate.NewLimiter(rate.Limit(bytesPerSecond), int(burst-burst%4096))
}

// known are the groups that were on this machine before, as the journal says: one
// of them that is not found is no mistake in the configuration. Its disks failed,
// or are late.
// Neither is one of which another has the name.
func (s *Service) known(names []string, records map[string]record, states map[string]groupRecord) map[string]bool {
	groups := map[string]bool{}
	for _, name := range names {
		groups[name] = len(s.lvm.Others(name)) > 0 || s.model.groups[name].pinned != ""
	}
	for _, r := range records {
		groups[r.Group] = true
	}
	for name := range states {
		groups[name] = true
	}
	return groups
}

// checkGroups holds the configuration against the groups that there are. Those
// that are known may be missing.
func checkGroups(c *config.Config, found []lvm.Group, known map[string]bool) error {
	byName := map[string]*lvm.Group{}
	for i := range found {
		byName[found[i].Name] = &found[i]
	}
	for i := range c.Classes {
		dc := &c.Classes[i]
		for j, name := range dc.VolumeGroups {
			g := byName[name]
			if g == nil && !dc.Optional && c.Group(name) == nil && !known[name] {
				return dc.GroupProblem(j,
					"no such volume group on this machine; make it with vgcreate, or set optional: true where nodes may lack it")
			}
			if g == nil {
				continue
			}
			if err := layoutProblem(dc, g); err != nil {
				return err
			}
			if dc.Medium != config.PMEM {
				continue
			}
			if err := pmemProblem(g); err != nil {
				return dc.Problem("medium", string(dc.Medium), err.Error())
			}
		}
	}
	return nil
}

// pmemProblem says why a group cannot be used for volumes that are mapped
// directly into memory, or nothing.
func pmemProblem(g *lvm.Group) error {
	if g.ExtentSize%pmemAlignment != 0 {
		return fmt.Errorf("volume group %q has extents of %d bytes; for pmem they must be a multiple of 2 MiB (vgcreate --physicalextentsize)",
			g.Name, g.ExtentSize)
	}
	for _, d := range g.Devices {
		if !d.Missing && !d.DAX {
			return fmt.Errorf("%s of volume group %q cannot be mapped directly into memory (its queue/dax is not 1); use medium: disk", d.Path, g.Name)
		}
		if !d.Missing && d.DataOffset%pmemAlignment != 0 {
			return fmt.Errorf("on %s of volume group %q the data begins at byte %d; for pmem it must be a multiple of 2 MiB (pvcreate --dataalignment 2m)",
				d.Path, g.Name, d.DataOffset)
		}
	}
	return nil
}

// activate mends the devices of our volumes, makes them where any lacks one, as
// after a reboot, and returns the groups as they are then.
func (s *Service) activate(ctx context.Context, names []string, found []lvm.Group) ([]lvm.Group, error) {
	changed := false
	for _, g := range found {
		mended, err := s.mendIn(&g)
		changed = changed || mended
		if err != nil {
			s.doubt(s.model.groups[g.Name])
		}
	}
	if !s.makeDevices(ctx, found) && !changed {
		return found, nil
	}
	found, err := s.lvm.Scan(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("scanning the volume groups %s: %w", strings.Join(names, ", "), err)
	}
	return found, nil
}

// makeDevices activates the volumes of ours, and the thin pools that we have to do with,
// that have no device in groups as they were scanned, and reports whether there were any.
func (s *Service) makeDevices(ctx context.Context, found []lvm.Group) (changed bool) {
	for i := range found {
		g := &found[i]
		inactive := s.inactiveIn(g)
		if len(inactive) == 0 {
			continue
		}
		changed = true
		s.log.Info("activating volumes", "group", g.Name, "volumes", len(inactive))
		if err := s.lvm.Activate(ctx, g.Name, inactive); err != nil {
			// A volume on a missing disk is no reason not to serve the others.
			s.log.Error("not all volumes could be activated", "group", g.Name, "error", err)
		}
	}
	return changed
}

// inactiveIn names the volumes of ours, and the thin pools that we have to do with, that
// have no device and are to have one. Those that an administrator set to be skipped, to
// repair them for example, are left alone, and so is what lies in such a pool: to activate
// it would activate the pool.
func (s *Service) inactiveIn(g *lvm.Group) []string {
	pools := s.poolsIn(g)
	var inactive []string
	for i := range g.Volumes {
		lv := &g.Volumes[i]
		pool := g.Volume(lv.Pool)
		switch {
		case lv.Attr.SkipActivation || pool != nil && pool.Attr.SkipActivation:
		case pools[lv.Name]:
			if s.inactivePool(g.Name, lv) {
				inactive = append(inactive, lv.Name)
			}
		case isOurs(lv.Tags):
			if _, err := s.lvm.Device(g.Name, lv.Name); err != nil {
				inactive = append(inactive, lv.Name)
			}
		}
	}
	return inactive
}

// recall puts what the journal knows into the model. Records of groups that
// are not configured now are left in the journal. The caller holds the lock.
func (s *Service) recall(records map[string]record) {
	for _, r := range records {
		g := s.model.groups[r.Group]
		if g == nil {
			s.log.Warn("volume's group is not configured any more; it is left alone", "volume", r.ID, "group", r.Group)
			continue
		}
		s.model.add(&volume{rec: r, group: g})
	}
}

func countOurs(found []lvm.Group) int {
	n := 0
	for _, g := range found {
		for _, lv := range g.Volumes {
			if isOurs(lv.Tags) {
				n++
			}
		}
	}
	return n
}
