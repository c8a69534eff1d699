package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/devmapper"
)

// Host is the machine's LVM.
//
// It looks at the devices of the groups it was asked about and at no others:
// the first Scan, and one that misses something, looks at every block device
// that is not a logical volume, and remembers where the groups' devices were.
// Host is safe for concurrent use within the rules of Groups.
type Host struct {
	runner *Runner

	mu sync.Mutex
	// devices are the paths of each known group's physical volumes.
	devices map[string][]string
	// reading has since when devices are being read, see patiently.
	reading map[string]time.Time
	// physical are each known group's physical volumes.
	physical map[string][]PhysicalVolume
	// uuids are those of the groups that were found last, pins those that groups must have,
	// and others those of further groups of the same names: see identity.go.
	uuids, pins map[string]string
	others      map[string][]string
	// policies are the groups' allocation policies.
	policies map[string]string
	// unsettled are groups with thin pools for which messages may be left, see settle.
	unsettled map[string]bool
	// former are the paths where a group that is gone was last seen.
	former map[string][]string
	// patience is readTimeout but in tests.
	patience time.Duration
	// answers is told of devices that were silent and answer again, or nil.
	answers chan<- struct{}
	flushes flushes
	// accepts limits which block devices are looked at, or is nil. See Limit.
	accepts func(*BlockDevice) bool
}

var _ Groups = (*Host)(nil)

// NewHost returns the machine's LVM, driven by the given runner.
func NewHost(r *Runner) *Host {
	h := &Host{runner: r, patience: readTimeout, devices: map[string][]string{}, physical: map[string][]PhysicalVolume{}, unsettled: map[string]bool{}, former: map[string][]string{}, reading: map[string]time.Time{}, policies: map[string]string{},
		uuids: map[string]string{}, pins: map[string]string{}, others: map[string][]string{}}
	h.flushes = flushes{device: flushDevice, answered: h.answered, abandoned: map[string]int{}}
	return h
}

// Stuck counts what was given up and still waits in the kernel for a device that does not
// answer: commands that were killed, reads, and flushes. Each keeps a thread or a process.
// It is safe for concurrent use.
func (h *Host) Stuck() int {
	h.mu.Lock()
	reads := 0
	for _, since := range h.reading {
		if time.Since(since) >= h.patience {
			reads++
		}
	}
	h.mu.Unlock()
	return h.runner.Stuck() + reads + h.flushes.stuck()
}

// answered passes on that a device answers on which nothing waited any more.
func (h *Host) answered() {
	if h.answers == nil {
		return
	}
	select {
	case h.answers <- struct{}{}:
	default:
	}
}

// Notify has events, which should hold an element, told of block devices that did not
// answer and do again: that is no event of the kernel's. It is called before any
// other method.
func (h *Host) Notify(events chan<- struct{}) { h.answers = events }

// Scan implements Groups with one command, or with a second one over all
// devices when the known ones do not make every group whole; stale device
// nodes are dropped before that.
func (h *Host) Scan(ctx context.Context, groups []string) ([]Group, error) {
	if known := h.known(groups...); len(known) > 0 {
		found, err := h.scan(ctx, groups, known)
		if err == nil && whole(found, groups) {
			return found, nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
	}
	return h.scan(ctx, groups, nil)
}

// whole tells whether every wanted group was found with all of its devices.
func whole(found []Group, want []string) bool {
	if len(found) < len(want) {
		return false
	}
	return !slices.ContainsFunc(found, func(g Group) bool { return g.MissingDevices > 0 })
}

func (h *Host) scan(ctx context.Context, groups, devices []string) ([]Group, error) {
	// All groups that are seen are reported, and others dropped here: a name
	// on the command line that does not exist would be an error.
	configuration := lvmConfig(devices)
	if len(devices) == 0 {
		var err error
		if configuration, err = h.everywhere(); err != nil {
			return nil, err
		}
	}
	args := []string{
		"--config", configuration,
		"--reportformat", "json", "--units", "b", "--nosuffix",
	}
	for _, r := range reportFields {
		args = append(args, "--configreport", r.part, "-o", r.fields)
	}
	out, err := h.runner.Run(ctx, "fullreport", args...)
	if err != nil {
		return nil, err
	}
	found, err := parseFullReport(out)
	if err != nil {
		return nil, err
	}
	found = h.pick(groups, found)
	for _, g := range found {
		for i := range g.Devices {
			g.Devices[i].DAX = !g.Devices[i].Missing && hasDAX(g.Devices[i].Path)
		}
	}
	h.remember(groups, found)
	// A node that cannot be dropped is no reason not to tell what the group holds.
	_ = dropStaleNodes(groups...)
	// What is reported will be acted on, and a command that was killed may have
	// written it a moment ago. A disk that cannot flush is no reason not to tell
	// what it holds: the next change finds out.
	ctx, cancel := context.WithTimeout(ctx, h.runner.Timeout)
	defer cancel()
	for _, g := range found {
		err := h.flushes.flush(ctx, h.known(g.Name))
		if errors.Is(err, ErrTimedOut) {
			return nil, err
		}
		if err == nil && h.isUnsettled(g.Name) {
			// What fails of it, the next command on the pool does.
			_ = h.tellRemovals(g.Name)
		}
	}
	return found, nil
}

// everywhere is the configuration of a command that looks at all block devices that the
// limit leaves, but not at those that do not answer: LVM would wait for them, and its
// caller with it.
func (h *Host) everywhere() (string, error) {
	silent := h.silent()
	if h.accepts == nil {
		return lvmConfigWithout(silent), nil
	}
	all, err := h.BlockDevices()
	if err != nil {
		return "", err
	}
	var allowed []string
	for _, d := range all {
		if !d.LogicalVolume && !strings.HasPrefix(d.Mapping, "carve.") && !slices.Contains(silent, d.Path) {
			allowed = append(allowed, d.Path)
			if d.Mapping != "" {
				allowed = append(allowed, "/dev/mapper/"+d.Mapping)
			}
		}
	}
	return lvmConfig(allowed), nil
}

// remember keeps where the groups lie that were looked for and found.
func (h *Host) remember(groups []string, found []Group) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range groups {
		if len(h.devices[g]) > 0 {
			h.former[g] = h.devices[g]
		}
		delete(h.devices, g)
		delete(h.physical, g)
	}
	for _, g := range found {
		delete(h.former, g.Name)
		h.physical[g.Name], h.policies[g.Name] = g.Devices, g.Allocation
		if slices.ContainsFunc(g.Volumes, func(v Volume) bool { return v.Pool != "" || v.Attr.Type == 't' }) {
			h.unsettled[g.Name] = true
		}
		for _, d := range g.Devices {
			if !d.Missing && strings.HasPrefix(d.Path, "/dev/") {
				h.devices[g.Name] = append(h.devices[g.Name], d.Path)
			}
		}
	}
}

// known returns the devices of the groups, or nothing when any group has none.
func (h *Host) known(groups ...string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []string
	for _, g := range groups {
		if len(h.devices[g]) == 0 {
			return nil
		}
		all = append(all, h.devices[g]...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// seen returns where the group is, or where it was before it was gone: a group
// that was given another name comes back there.
func (h *Host) seen(group string) []string {
	if known := h.known(group); len(known) > 0 {
		return known
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.former[group])
}

// Metadata implements Groups: the highest sequence number on any of the
// group's disks is the one that counts, and the smallest area the one that
// limits.
func (h *Host) Metadata(group string) (Metadata, error) {
	var best Metadata
	var last error
	pin := h.pinned(group)
	for _, path := range h.seen(group) {
		head, err := patiently(h, path, readTextHead)
		if err != nil {
			last = err
			best.Unreadable++
			continue
		}
		if head.check(group, pin) != nil {
			continue
		}
		if best.Seqno == 0 || head.limit < best.Limit {
			best.Limit = head.limit
		}
		if head.seqno > best.Seqno {
			best.Seqno, best.Size = head.seqno, head.size
		}
	}
	if best.Seqno == 0 {
		if last == nil {
			last = fmt.Errorf("no disk with its metadata")
		}
		return Metadata{}, fmt.Errorf("volume group %q: %w: %w", group, ErrNotFound, last)
	}
	return best, nil
}

// Placement implements Groups: from the first disk that has what Metadata says
// is current.
func (h *Host) Placement(group string) (Placement, error) {
	return committed(h, group, parsePlacement)
}

// committed is what parse makes of the group's metadata text, read from a disk that
// has the newest. ErrNotFound when there is none.
func committed[T any](h *Host, group string, parse func(text []byte) (T, error)) (T, error) {
	var none T
	now, err := h.Metadata(group)
	if err != nil {
		return none, err
	}
	last := fmt.Errorf("no disk with its metadata")
	pin := h.pinned(group)
	for _, path := range h.known(group) {
		text, err := patiently(h, path, func(path string) (groupText, error) { return readGroupText(path, group, pin) })
		if err == nil && text.seqno < now.Seqno {
			continue
		}
		var v T
		if err == nil {
			v, err = parse(text.text)
		}
		if err == nil {
			return v, nil
		}
		last = fmt.Errorf("%s: %w", path, err)
	}
	return none, fmt.Errorf("volume group %q: %w: %w", group, ErrNotFound, last)
}

// maxActivated bounds how many volumes one command activates: a lasting lvm process takes
// some sixty words.
const maxActivated = 50

// Activate implements Groups. Device nodes are made anew, too: those of
// volumes that are active already may be missing or stale, for example where
// /dev is not the host's. What an activation that was killed left in the way is
// removed before.
func (h *Host) Activate(ctx context.Context, group string, volumes []string) error {
	// If it cannot be removed, LVM says what is in the way.
	_ = dropComponents(group, volumes)
	for _, target := range []string{thinPoolTarget, raidTarget} {
		// If there is a volume that needs it, LVM says that it is missing.
		_ = provideTarget(target)
	}
	var errs []error
	for some := range slices.Chunk(volumes, maxActivated) {
		args := []string{"--activate", "y"}
		for _, v := range some {
			args = append(args, group+"/"+v)
		}
		errs = append(errs, h.change(ctx, []string{group}, "lvchange", args...))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	err := h.change(ctx, []string{group}, "vgmknodes", group)
	if failed := (*CommandError)(nil); errors.As(err, &failed) && failed.Err == nil && failed.ExitCode == poolNodeFailure {
		// It makes all nodes and says nothing, but fails for every thin pool,
		// which has none under /dev/GROUP. Who needs a node looks for it.
		return nil
	}
	return err
}

// poolNodeFailure is the exit code of vgmknodes in groups with thin pools.
const poolNodeFailure = 5

// Remove implements Groups.
func (h *Host) Remove(ctx context.Context, group string, volumes []string) error {
	deaf, err := h.settle(group, volumes...)
	if err != nil {
		return err
	}
	args := []string{"--yes"}
	for _, v := range volumes {
		args = append(args, group+"/"+v)
	}
	err = h.change(ctx, []string{group}, "lvremove", args...)
	return errors.Join(err, h.forgetRemoved(group, deaf, volumes))
}

// change runs a command that is confined to the devices of the groups, and
// returns when what it did is durable.
func (h *Host) change(ctx context.Context, groups []string, command string, args ...string) error {
	devices := h.known(groups...)
	if len(devices) == 0 {
		return fmt.Errorf("volume group %q: %w: none of its disks is known", strings.Join(groups, ", "), ErrNotFound)
	}
	for _, g := range groups {
		if err := h.confirm(g); err != nil {
			return err
		}
	}
	args = append([]string{"--config", lvmConfig(devices)}, args...)
	before := linksOf(groups)
	var err error
	if len(groups) == 1 {
		_, err = h.runner.RunFor(ctx, groups[0], command, args...)
	} else {
		_, err = h.runner.Run(ctx, command, args...)
	}
	if err != nil {
		// It may have acted all the same: the Scan that must follow flushes, and
		// drops nodes of what is gone. Links that it replaced may be missing.
		return errors.Join(err, before.restore())
	}
	ctx, cancel := context.WithTimeout(ctx, h.runner.Timeout)
	defer cancel()
	return h.flushes.flush(ctx, devices)
}

// Device implements Groups by asking the kernel's device mapper, and holding
// the device node against what it says.
func (h *Host) Device(group, volume string) (Device, error) {
	d, err := dmStatus(dmName(group, volume))
	if err != nil {
		return Device{}, err
	}
	if !d.Active {
		return Device{}, fmt.Errorf("device-mapper device of %s/%s has no table: %w", group, volume, ErrNotFound)
	}
	path := "/dev/" + group + "/" + volume
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Device{}, fmt.Errorf("device node %s: %w: %w", path, ErrNotFound, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || unix.Major(st.Rdev) != d.Major || unix.Minor(st.Rdev) != d.Minor {
		return Device{}, fmt.Errorf("device node %s is stale: it leads to %d:%d, the volume is %d:%d: %w",
			path, unix.Major(st.Rdev), unix.Minor(st.Rdev), d.Major, d.Minor, ErrNotFound)
	}
	return Device{
		Path:  path,
		Major: d.Major, Minor: d.Minor,
		OpenCount: d.OpenCount,
		Suspended: d.Suspended,
	}, nil
}

// Numbers implements Groups.
func (h *Host) Numbers(group string) (Numbers, error) {
	list, err := dmList()
	if err != nil {
		return Numbers{}, err
	}
	return numbersOf(group, list), nil
}

func numbersOf(group string, list []devmapper.Entry) Numbers {
	n := Numbers{Volumes: map[string]Number{}, Encrypted: map[string]Number{}}
	prefix := dmName(group, "")
	for _, d := range list {
		if volume, ours := strings.CutPrefix(d.Name, cryptPrefix); ours {
			n.Encrypted[volume] = Number{d.Major, d.Minor}
			continue
		}
		rest, ours := strings.CutPrefix(d.Name, prefix)
		volume := strings.ReplaceAll(rest, "--", "-")
		// A hyphen by itself is before what LVM calls a hidden layer of a volume, and
		// two at the beginning are in the name of another group.
		if ours && dmName(group, volume) == d.Name {
			n.Volumes[volume] = Number{d.Major, d.Minor}
		}
	}
	return n
}

// Open implements Groups. Exclusive opening fails while the device is mounted
// or mapped; that no process merely holds it open, the device mapper's count
// tells.
func (h *Host) Open(group, volume string) (Handle, error) {
	return openAlone(dmName(group, volume), group+"/"+volume)
}

// openAlone opens the device of a device-mapper name, of what messages call what.
func openAlone(name, what string) (Handle, error) {
	before, err := dmStatus(name)
	if err != nil {
		return nil, err
	}
	path := "/dev/mapper/" + name
	dev, err := openExclusive(path, before.Major, before.Minor)
	if errors.Is(err, ErrNotFound) && before.Active {
		// The kernel has the device, and it may be mounted: a caller must not take a missing
		// or stale node for a missing device.
		if err = makeNode(path, before); err == nil {
			dev, err = openExclusive(path, before.Major, before.Minor)
		}
	}
	if err != nil {
		return nil, err
	}
	after, err := dmStatus(name)
	if err != nil {
		_ = dev.Close()
		return nil, err
	}
	if after.OpenCount > 1 {
		_ = dev.Close()
		return nil, fmt.Errorf("%s: %w: %d have it open", what, ErrBusy, after.OpenCount-1)
	}
	return dev, nil
}

// OpenInUse implements Groups.
func (h *Host) OpenInUse(group, volume string) (Handle, error) {
	name := dmName(group, volume)
	d, err := dmStatus(name)
	if err != nil {
		return nil, err
	}
	return openDevice("/dev/mapper/"+name, 0, d.Major, d.Minor)
}
