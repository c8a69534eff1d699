package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// disks knows on which disks the groups are, and reads the groups' metadata there. It is
// safe for concurrent use; mu is held for moments only.
type disks struct {
	mu     sync.Mutex
	groups map[string]*knownGroup
	// reads bounds the wait for disks, and layers that for what is below them.
	reads, layers blockdev.Guard
	// excluded are the devices that the last look at all of them left out, see Excluded.
	excluded []Excluded
	// duplicates are the physical volumes that the last look at all devices found on several
	// of them, by UUID, see Duplicated.
	duplicates map[string]Duplicate
	// accepts limits which block devices are looked at, or is nil. See Limit.
	accepts func(*blockdev.Device) bool
}

// knownGroup is what is known of a group of a name.
type knownGroup struct {
	// paths are those of the physical volumes, former those where a group that is gone
	// was last seen.
	paths, former []string
	physical      []PhysicalVolume
	// uuid is that of the group that was found last, pin what it must be, and others are
	// further groups of the name.
	uuid   string
	pin    Identity
	others []Other
	// policy is the allocation policy.
	policy string
	// messages is true while messages may be left for thin pools, see messages.
	messages bool
	// busy is true while commands that look at all devices leave out the group's, see setBusy.
	busy bool
}

// group is what is known of a group. The caller holds mu.
func (d *disks) group(name string) *knownGroup {
	if d.groups[name] == nil {
		d.groups[name] = &knownGroup{}
	}
	return d.groups[name]
}

// view returns a copy of what is known of a group.
func (d *disks) view(name string) knownGroup {
	d.mu.Lock()
	defer d.mu.Unlock()
	return *d.group(name)
}

// Pin implements Groups. Where another group of the name was is forgotten: the next
// Scan looks at all devices.
func (d *disks) Pin(group string, identity Identity) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := d.group(group)
	g.pin = identity
	if len(g.physical) > 0 && g.uuid != identity.UUID {
		g.paths, g.physical = nil, nil
	}
}

// Limit implements Groups.
func (d *disks) Limit(accepts func(*blockdev.Device) bool) { d.accepts = accepts }

// Others implements Groups.
func (d *disks) Others(group string) []Other { return slices.Clone(d.view(group).others) }

// isProven reports whether a disk that the group is known by has the metadata that LVM took for the group's:
// that of the highest number, which may be on a disk of another that lists the group's. Where none of
// them has any to read, it is.
func (d *disks) isProven(g *Group) bool {
	pin := d.view(g.Name).pin
	if pin.UUID != g.UUID || len(pin.Devices) == 0 {
		return true
	}
	isOlder := false
	for _, pv := range g.Devices {
		if pv.Missing || !slices.Contains(pin.Devices, pv.UUID) {
			continue
		}
		// A command may have raised the number since.
		if head, err := readWithTimeout(d, pv.Path, ondisk.ReadHead); err == nil && head.Seqno >= g.Seqno {
			return true
		} else if err == nil {
			isOlder = true
		}
	}
	return !isOlder
}

// pick keeps those of the found groups that are taken for the ones of their names, and
// notes the others.
func (d *disks) pick(groups []string, found []Group) []Group {
	forged := map[string]bool{}
	for i := range found {
		forged[found[i].UUID] = forged[found[i].UUID] || !d.isProven(&found[i])
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var ours []Group
	for _, name := range groups {
		g := d.group(name)
		var taken *Group
		taken, g.others = Identify(name, g.pin, found)
		if hidden := foreign(name, g.pin, found); taken == nil && hidden != nil {
			// That it is ours again shows there, see Metadata.
			g.others, g.former = []Other{*hidden}, hidden.Paths
		}
		if taken != nil && forged[taken.UUID] {
			g.others, taken = append(g.others, otherOf(taken)), nil
		}
		if copied := d.duplicatesOf(g.pin, taken); len(copied) > 0 {
			// LVM has chosen one of the devices, and would not see the other where it is
			// confined to that.
			g.others, taken = []Other{duplicated(&g.pin, taken, copied)}, nil
		}
		if taken != nil {
			g.uuid = taken.UUID
			ours = append(ours, *taken)
		}
	}
	return ours
}

// Identify chooses among groups the one that is taken for the one of a name: that with
// the identity, or without a UUID the only one of the name. It returns nil when there is
// none, and all others of the name, by UUID.
func Identify(name string, identity Identity, among []Group) (taken *Group, others []Other) {
	var named []*Group
	for i := range among {
		if among[i].Name == name && among[i].Foreign == "" {
			named = append(named, &among[i])
		}
	}
	for _, g := range named {
		if identity.UUID == "" && len(named) == 1 || g.Fits(identity) {
			taken = g
			continue
		}
		others = append(others, otherOf(g))
	}
	slices.SortFunc(others, func(a, b Other) int { return strings.Compare(a.UUID, b.UUID) })
	return taken, others
}

// foreign returns the group of a name that would be taken if LVM did not hide it, or nil.
func foreign(name string, pin Identity, among []Group) *Other {
	for i := range among {
		if g := &among[i]; g.Name == name && g.Foreign != "" && (pin.UUID == "" || g.Fits(pin)) {
			other := otherOf(g)
			other.Foreign = g.Foreign
			return &other
		}
	}
	return nil
}

// isForeign reports whether the last scan found a group that LVM hides.
func (d *disks) isForeign(group string) bool {
	return slices.ContainsFunc(d.view(group).others, func(o Other) bool { return o.Foreign != "" })
}

// isPartial reports whether the last scan found a group without some of its disks.
func (d *disks) isPartial(group string) bool {
	return slices.ContainsFunc(d.view(group).physical, func(pv PhysicalVolume) bool { return pv.Missing })
}

// otherOf is a group that is not taken.
func otherOf(g *Group) Other {
	other := Other{UUID: g.UUID}
	for _, pv := range g.Devices {
		if !pv.Missing {
			other.Paths = append(other.Paths, pv.Path)
		}
	}
	return other
}

// remember keeps where the groups lie that were looked for and found.
func (d *disks) remember(groups []string, found []Group) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range groups {
		g := d.group(name)
		if len(g.paths) > 0 {
			g.former = g.paths
		}
		g.paths, g.physical = nil, nil
	}
	for _, f := range found {
		g := d.group(f.Name)
		g.former, g.physical, g.policy = nil, f.Devices, f.Allocation
		if slices.ContainsFunc(f.Volumes, func(v Volume) bool { return v.Pool != "" || v.Attr.Type == 't' }) {
			g.messages = true
		}
		for _, pv := range f.Devices {
			if !pv.Missing && strings.HasPrefix(pv.Path, "/dev/") {
				g.paths = append(g.paths, pv.Path)
			}
		}
	}
}

// add adds devices to those of a group.
func (d *disks) add(group string, devices []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := d.group(group)
	g.paths = slices.Concat(g.paths, devices)
	slices.Sort(g.paths)
	g.paths = slices.Compact(g.paths)
}

// known returns the devices of the groups, or nothing when any group has none.
func (d *disks) known(groups ...string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for _, name := range groups {
		g := d.group(name)
		if len(g.paths) == 0 {
			return nil
		}
		all = append(all, g.paths...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// require is known, or ErrNotFound.
func (d *disks) require(group string) ([]string, error) {
	if copied := d.duplicatesOfKnown(group); len(copied) > 0 {
		return nil, fmt.Errorf("volume group %q: %w: the same physical volume is on %s", group, ErrNotFound, strings.Join(copied[0].Paths, " and "))
	}
	if known := d.known(group); len(known) > 0 {
		return known, nil
	}
	return nil, fmt.Errorf("volume group %q: %w: none of its disks is known", group, ErrNotFound)
}

// messagesLeft notes whether messages may be left for thin pools of a group.
func (d *disks) messagesLeft(group string, left bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.group(group).messages = left
}

// numbers are the device numbers of a group's physical volumes, with their UUIDs.
func (d *disks) numbers(group string) map[blockdev.Number]string {
	numbers := map[blockdev.Number]string{}
	for _, pv := range d.view(group).physical {
		if n, err := blockdev.NumberOf(pv.Path); err == nil {
			numbers[n] = pv.UUID
		}
	}
	return numbers
}

// BlockDevices implements Devices.
func (d *disks) BlockDevices() ([]blockdev.Device, error) {
	all, err := blockdev.List("/")
	if err != nil {
		return nil, err
	}
	if d.accepts != nil {
		all = slices.DeleteFunc(all, func(b blockdev.Device) bool { return !d.accepts(&b) })
	}
	var asking sync.WaitGroup
	for i := range all {
		if all[i].UserData = usersMapping(all[i].Mapping); all[i].UserData == "" {
			asking.Go(func() {
				if err := d.examine(all[i].Path); err != nil {
					all[i].UserData = err.Error()
				}
			})
		}
	}
	asking.Wait()
	return all, nil
}

// Excluded implements Groups.
func (d *disks) Excluded() []Excluded {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.excluded)
}

// pins are those of the groups of these names.
func (d *disks) pins(groups []string) pins {
	d.mu.Lock()
	defer d.mu.Unlock()
	uuids := pins{}
	for _, name := range groups {
		uuids[name] = d.group(name).pin.UUID
	}
	return uuids
}

// setBusy has commands that look at all devices leave out those of a group until it is set free:
// LVM holds the group's lock while it checks a thin pool, and they would wait for that.
func (d *disks) setBusy(group string) (free func()) {
	set := func(busy bool) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.group(group).busy = busy
	}
	set(true)
	return func() { set(false) }
}

// busy are the devices of the groups that are.
func (d *disks) busy() (paths []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, g := range d.groups {
		if g.busy {
			paths = append(paths, g.paths...)
		}
	}
	return paths
}

// everywhere is the configuration of a command that looks at all block devices that the
// limit leaves, but not at those whose contents are a user's, nor at those that do not answer:
// LVM would wait for them, and its caller with it. It names what was looked at: what appears
// later is not.
func (d *disks) everywhere() (string, error) {
	answering, err := d.look()
	if err != nil {
		return "", err
	}
	var paths []string
	for i := range answering {
		paths = append(paths, answering[i].device.Paths()...)
	}
	return lvmConfig(paths), nil
}

// pinned are the devices whose labels say that they are disks of the groups, by what these are known by. It
// returns nothing when a group has not all of them, when one has a copy, and when a further physical volume is of a group,
// or may be: only all devices show then what the group is.
func (d *disks) pinned(groups ...string) (paths []string) {
	answering, err := d.look()
	if err != nil {
		return nil
	}
	others := slices.Clone(answering)
	for _, name := range groups {
		ours := d.view(name).pin.Devices
		isOurs := func(l labelled) bool { return slices.Contains(ours, l.label.UUID) }
		there := 0
		for _, l := range answering {
			if isOurs(l) {
				paths = append(paths, l.device.Path)
				there++
			}
		}
		if there == 0 || there < len(ours) {
			return nil
		}
		others = slices.DeleteFunc(others, isOurs)
	}
	for _, l := range others {
		if l.label.UUID == "" {
			continue
		}
		head, err := readWithTimeout(d, l.device.Path, ondisk.ReadHead)
		if err != nil || slices.ContainsFunc(groups, func(name string) bool { return d.view(name).pin.UUID == head.UUID }) {
			return nil
		}
	}
	for _, name := range groups {
		if len(d.duplicatesOfKnown(name)) > 0 {
			return nil
		}
	}
	return paths
}

// labelled is a device with what it says of itself as a physical volume.
type labelled struct {
	device blockdev.Device
	label  ondisk.Label
}

// look reads the labels of all block devices that everywhere names, and notes the duplicates.
func (d *disks) look() (answering []labelled, err error) {
	all, err := d.BlockDevices()
	if err != nil {
		return nil, err
	}
	all = d.withoutUsers(all)
	labels, answers := d.labels(all)
	duplicates := d.duplicatesAmong(all, labels)
	busy := d.busy()
	for i := range all {
		isBusy := slices.ContainsFunc(all[i].Paths(), func(path string) bool { return slices.Contains(busy, path) })
		if !isBusy && !errors.Is(answers[i], ErrTimedOut) {
			answering = append(answering, labelled{all[i], labels[i]})
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.duplicates = duplicates
	return answering, nil
}

// readTimeout is how long a read of a label or of metadata may take.
const readTimeout = 10 * time.Second

// readWithTimeout reads a device, or fails with ErrTimedOut; with ErrUserData where the
// contents are a user's.
func readWithTimeout[T any](d *disks, device string, read func(device string) (T, error)) (T, error) {
	if err := d.examine(device); err != nil {
		var none T
		return none, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	return blockdev.Do(ctx, &d.reads, device, read)
}

// Label implements Devices.
func (d *disks) Label(device string) (ondisk.Label, error) {
	return readWithTimeout(d, device, ondisk.ReadLabel)
}

// confirm returns an error when a disk of the group, where it was seen last, holds another
// group by now: the kernel gives the name of a disk that is gone to the next one. ErrNotFound
// has the caller scan. A disk that cannot be read is left to LVM.
func (d *disks) confirm(group string) error {
	pin := d.view(group).pin.UUID
	if pin == "" {
		return nil
	}
	for _, path := range d.known(group) {
		head, err := readWithTimeout(d, path, ondisk.ReadHead)
		if err != nil {
			continue // change looks for users' data
		}
		if err := head.Check(group, pin); err != nil {
			return fmt.Errorf("volume group %q: %w: %s: %w", group, ErrNotFound, path, err)
		}
	}
	return nil
}

// Metadata implements Groups: the highest sequence number on any of the
// group's disks is the one that counts, and the smallest area the one that
// limits. Of a group that is gone it reads the disks where the group was: one that was
// given another name comes back there.
func (d *disks) Metadata(group string) (ondisk.Metadata, error) {
	var best ondisk.Metadata
	var last error
	g := d.view(group)
	paths := g.paths
	if len(paths) == 0 {
		paths = g.former
	}
	for _, path := range paths {
		head, err := readWithTimeout(d, path, ondisk.ReadHead)
		if err != nil {
			last = err
			best.Unreadable++
			continue
		}
		if head.Check(group, g.pin.UUID) != nil {
			continue
		}
		if best.Seqno == 0 || head.Limit < best.Limit {
			best.Limit = head.Limit
		}
		if head.Seqno > best.Seqno {
			best.Seqno, best.Size = head.Seqno, head.Size
		}
	}
	if best.Seqno == 0 {
		if last == nil {
			last = errNoMetadata
		}
		return ondisk.Metadata{}, fmt.Errorf("volume group %q: %w: %w", group, ErrNotFound, last)
	}
	return best, nil
}

// Placement implements Groups: from the first disk that has what Metadata says
// is current.
func (d *disks) Placement(group string) (ondisk.Placement, error) {
	return committed(d, group, ondisk.ParsePlacement)
}

// errNotUnderstood is returned for metadata that were read whole, and errNoMetadata where all known
// disks of a group were read, and none has its metadata.
var (
	errNotUnderstood = errors.New("the metadata are not understood")
	errNoMetadata    = errors.New("no disk with its metadata")
)

// committed is what parse makes of the group's metadata text, read from a disk that
// has the newest. ErrNotFound when there is none.
func committed[T any](d *disks, group string, parse func(text []byte) (T, error)) (T, error) {
	var none T
	now, err := d.Metadata(group)
	if err != nil {
		return none, err
	}
	last := errNoMetadata
	pin := d.view(group).pin.UUID
	for _, path := range d.known(group) {
		text, err := readWithTimeout(d, path, func(path string) (ondisk.Text, error) { return ondisk.ReadText(path, group, pin) })
		if err == nil && text.Seqno < now.Seqno {
			continue
		}
		if err != nil {
			last = fmt.Errorf("%s: %w", path, err)
			continue
		}
		v, err := parse(text.Text)
		if err != nil {
			last = fmt.Errorf("%s: %w: %w", path, errNotUnderstood, err)
			break // Others have the same.
		}
		return v, nil
	}
	return none, fmt.Errorf("volume group %q: %w: %w", group, ErrNotFound, last)
}
