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

// disks knows on which disks the groups are, and reads metadata there. It is safe for
// concurrent use; mu is held only briefly.
type disks struct {
	mu     sync.Mutex
	groups map[string]*knownGroup
	// reads bounds the wait for disks, and layers the wait for the layers below them.
	reads, layers blockdev.Guard
	// excluded and duplicates, by UUID, are from the last look at all devices.
	excluded   []Excluded
	duplicates map[string]Duplicate
	// accepts may be nil, see Limit.
	accepts func(*blockdev.Device) bool
}

type knownGroup struct {
	// paths are those of the physical volumes; former is where a group that is gone was last
	// seen.
	paths, former []string
	physical      []PhysicalVolume
	// uuid is the last found group's, pin is the identity that it must have, and others are
	// further groups of the name.
	uuid   string
	pin    Identity
	others []Other
	policy string
	// messages is true while thin pools may have unsent messages.
	messages bool
	// busy: see setBusy.
	busy bool
}

// group returns the entry of a group, new if need be. The caller holds mu.
func (d *disks) group(name string) *knownGroup {
	if d.groups[name] == nil {
		d.groups[name] = &knownGroup{}
	}
	return d.groups[name]
}

func (d *disks) view(name string) knownGroup {
	d.mu.Lock()
	defer d.mu.Unlock()
	return *d.group(name)
}

// Pin implements Groups. It forgets where a group of another identity was, so that the next
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

func (d *disks) Limit(accepts func(*blockdev.Device) bool) { d.accepts = accepts }

func (d *disks) Others(group string) []Other { return slices.Clone(d.view(group).others) }

// isProven reports whether the metadata that LVM used for the group comes from a pinned disk.
// LVM uses the highest sequence number, and a foreign disk that lists the group's physical
// volumes can show a higher one. It is true as well if no pinned disk has readable metadata.
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
			// Metadata reads former to see when the group is ours again.
			g.others, g.former = []Other{*hidden}, hidden.Paths
		}
		if taken != nil && forged[taken.UUID] {
			g.others, taken = append(g.others, otherOf(taken)), nil
		}
		if copied := d.duplicatesOf(g.pin, taken); len(copied) > 0 {
			// LVM has chosen one of the devices, and would not see the other when confined to
			// it.
			g.others, taken = []Other{duplicated(&g.pin, taken, copied)}, nil
		}
		if taken != nil {
			g.uuid = taken.UUID
			ours = append(ours, *taken)
		}
	}
	return ours
}

// Identify chooses the wanted group of a name: the one with the identity, or without a UUID the
// only one of the name. It returns nil if none fits, and the others of the name sorted by UUID.
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

// foreign returns the group that pick would use if LVM did not hide it, or nil.
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

func (d *disks) isForeign(group string) bool {
	return slices.ContainsFunc(d.view(group).others, func(o Other) bool { return o.Foreign != "" })
}

func (d *disks) isPartial(group string) bool {
	return slices.ContainsFunc(d.view(group).physical, func(pv PhysicalVolume) bool { return pv.Missing })
}

func otherOf(g *Group) Other {
	other := Other{UUID: g.UUID}
	for _, pv := range g.Devices {
		if !pv.Missing {
			other.Paths = append(other.Paths, pv.Path)
		}
	}
	return other
}

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

func (d *disks) add(group string, devices []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := d.group(group)
	g.paths = slices.Concat(g.paths, devices)
	slices.Sort(g.paths)
	g.paths = slices.Compact(g.paths)
}

// known returns nil if any group has no known devices.
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

func (d *disks) require(group string) ([]string, error) {
	if copied := d.duplicatesOfKnown(group); len(copied) > 0 {
		return nil, fmt.Errorf("volume group %q: %w: the same physical volume is on %s", group, ErrNotFound, strings.Join(copied[0].Paths, " and "))
	}
	if known := d.known(group); len(known) > 0 {
		return known, nil
	}
	return nil, fmt.Errorf("volume group %q: %w: none of its disks is known", group, ErrNotFound)
}

func (d *disks) messagesLeft(group string, left bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.group(group).messages = left
}

func (d *disks) numbers(group string) map[blockdev.Number]string {
	numbers := map[blockdev.Number]string{}
	for _, pv := range d.view(group).physical {
		if n, err := blockdev.NumberOf(pv.Path); err == nil {
			numbers[n] = pv.UUID
		}
	}
	return numbers
}

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

func (d *disks) Excluded() []Excluded {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.excluded)
}

func (d *disks) pins(groups []string) pins {
	d.mu.Lock()
	defer d.mu.Unlock()
	uuids := pins{}
	for _, name := range groups {
		uuids[name] = d.group(name).pin.UUID
	}
	return uuids
}

// setBusy hides a group's devices from commands that see all devices, until free is called. LVM
// holds the group's lock while it checks a thin pool, and those commands would wait for the
// lock.
func (d *disks) setBusy(group string) (free func()) {
	set := func(busy bool) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.group(group).busy = busy
	}
	set(true)
	return func() { set(false) }
}

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

// everywhere returns the configuration of a command that sees all block devices within the
// limit, except those with users' contents and those that do not answer: LVM, and its caller,
// would wait for them. It lists devices by name, so devices that appear later stay hidden.
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

// pinned returns the devices whose labels are those of the groups' pinned disks. It returns nil
// when only a look at all devices can decide: when a pinned disk is absent or duplicated, or
// when another physical volume belongs to one of the groups or may do so.
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

type labelled struct {
	device blockdev.Device
	label  ondisk.Label
}

// look reads the labels of the devices that everywhere names.
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

const readTimeout = 10 * time.Second

func readWithTimeout[T any](d *disks, device string, read func(device string) (T, error)) (T, error) {
	if err := d.examine(device); err != nil {
		var none T
		return none, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	return blockdev.Do(ctx, &d.reads, device, read)
}

func (d *disks) Label(device string) (ondisk.Label, error) {
	return readWithTimeout(d, device, ondisk.ReadLabel)
}

// confirm fails if a known disk of the group now holds another group: the kernel reuses the
// names of disks that are gone. ErrNotFound makes the caller scan. Unreadable disks are left to
// LVM.
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

// Metadata implements Groups. It returns the highest sequence number on the group's disks and
// the limit of the smallest metadata area. If the group is gone, it reads the former disks: a
// group that is renamed back reappears there.
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

// Placement implements Groups. It reads the first disk with the current metadata.
func (d *disks) Placement(group string) (ondisk.Placement, error) {
	return committed(d, group, ondisk.ParsePlacement)
}

// errNotUnderstood: the metadata was read but not parsed. errNoMetadata: all known disks of a
// group were read, and none has its metadata.
var (
	errNotUnderstood = errors.New("the metadata are not understood")
	errNoMetadata    = errors.New("no disk with its metadata")
)

// committed parses the newest metadata text on the group's disks. It returns ErrNotFound if
// there is none.
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
			break // The other disks hold the same.
		}
		return v, nil
	}
	return none, fmt.Errorf("volume group %q: %w: %w", group, ErrNotFound, last)
}
