// Package lvmfake is an LVM in memory: volume groups, volumes, devices and the
// bytes on them, behind the same interface as the real one.
//
// It owns nothing outside the process and is exact where callers depend on
// exactness: extents, sequence numbers, errors, and what a new volume shows
// of what was written to its extents before. It never runs anything. The
// suite in package lvmtest holds it to what the real LVM does.
//
// It survives a "crash" of its user: volumes stay, devices stay active until
// Deactivate, open handles must be dropped with CloseAll.
package lvmfake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/carve-csi/carve/pkg/lvm"
)

// Op names a method of lvm.Groups that runs a command.
type Op string

// The commands.
const (
	OpScan     Op = "scan"
	OpActivate Op = "activate"
	OpCreate   Op = "create"
	OpExtend   Op = "extend"
	OpRemove   Op = "remove"
	OpMend     Op = "mend"
)

// Groups is the fake. Its methods are safe for concurrent use.
type Groups struct {
	mu     sync.Mutex
	groups map[string]*group
	ops    map[Op]int
	minor  uint32
	disks  []*disk
	// away has the groups of which no disk is plugged in.
	away map[string]*group
	// pins are the UUIDs that groups must have.
	pins map[string]string
	// accepts limits which devices are seen, or is nil.
	accepts func(*lvm.BlockDevice) bool

	// Before, if set, runs before a command takes effect; an error from it is
	// the command's, which then has no effect. It must be set before use.
	Before func(ctx context.Context, op Op, group string) error
	// After, if set, runs after a command took effect; an error from it is
	// the command's, whose effect stays.
	After func(op Op, group string) error
	// BeforeZero, if set, runs before a range is zeroed.
	BeforeZero func(group, volume string, off, length int64) error
	// DiscardZeroes says that zeroes are read where devices were told to discard;
	// what was there is, otherwise. It must be set before use.
	DiscardZeroes bool
}

var _ lvm.Groups = (*Groups)(nil)

type group struct {
	uuid       string
	seqno      uint64
	extentSize int64
	extents    int64
	missing    bool
	dax        bool
	dataOffset int64
	free       []bool // by physical extent
	// mostVolumes is how many volumes there may be, or zero.
	mostVolumes int64
	// metadataLimit is the most bytes that the metadata may take.
	metadataLimit int64
	volumes       map[string]*volume
	// dirty holds the blocks that were written and not zeroed since.
	dirty map[int64]byte
	// noise holds those that were last written through a cipher.
	noise map[int64]bool
	// torn are devices that a command left in the middle of a change.
	torn []string
	// disks are the devices of a group that was made of some, in the order of
	// their extents.
	disks []*disk
}

type volume struct {
	uuid    string
	tags    []string
	created time.Time
	extents []int64
	minor   uint32 // zero while not active
	// written counts what was written to it.
	written uint64
	mounts  int
	handle  *handle
	// cipher is the volume's encrypted device, if it has one.
	cipher *cipher
	// pool is set for a thin pool, whose data the extents are; thin for a thin
	// volume, which has no extents.
	pool *pool
	thin *thin
	// shape is set for a volume that is not linear.
	shape *shape
}

// New returns an LVM without volume groups.
func New() *Groups {
	return &Groups{groups: map[string]*group{}, ops: map[Op]int{}, away: map[string]*group{}, pins: map[string]string{}}
}

// AddGroup makes a volume group of one device. Like every change, it may
// happen while others use the fake.
func (f *Groups) AddGroup(name string, extentSize, extents int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := &group{
		uuid: fmt.Sprintf("fake-%s", name), seqno: 1, extentSize: extentSize, extents: extents,
		metadataLimit: 521472, dataOffset: 1 << 20,
		free: make([]bool, extents), volumes: map[string]*volume{}, dirty: map[int64]byte{}, noise: map[int64]bool{},
	}
	for i := range g.free {
		g.free[i] = true
	}
	f.groups[name] = g
}

// RemoveGroup makes a volume group vanish with all it holds.
func (f *Groups) RemoveGroup(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.groups, name)
}

// PlugGroup takes all devices of a volume group that AddGroup made away, so that
// the group is not found, or brings them back with all they hold.
func (f *Groups) PlugGroup(name string, plugged bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	from, to := f.groups, f.away
	if plugged {
		from, to = to, from
	}
	to[name] = from[name]
	delete(from, name)
}

// SetGroupUUID gives a volume group another UUID: it is another group of the same name.
func (f *Groups) SetGroupUUID(name, uuid string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.groups[name].uuid = uuid
}

// SetDAX makes a group's device one that can be mapped directly into memory.
func (f *Groups) SetDAX(name string, dax bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.groups[name].dax = dax
}

// SetDataOffset changes where the first extent of a group's device begins.
func (f *Groups) SetDataOffset(name string, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.groups[name].dataOffset = bytes
}

// SetMetadataLimit changes how large a group's metadata may become; at first
// it is what LVM makes by default.
func (f *Groups) SetMetadataLimit(name string, limit int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.groups[name].metadataLimit = limit
}

// SetMissing makes a group's device vanish or come back.
func (f *Groups) SetMissing(name string, missing bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.groups[name].missing = missing
}

// Commands counts the commands run so far.
func (f *Groups) Commands(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ops[op]
}

// Scan implements lvm.Groups.
func (f *Groups) Scan(ctx context.Context, names []string) ([]lvm.Group, error) {
	if err := f.begin(ctx, OpScan, ""); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []lvm.Group
	for _, name := range names {
		if g := f.groups[name]; g != nil && f.takes(name, g) {
			found = append(found, g.report(name))
		}
	}
	return found, nil
}

// takes reports whether a group of the name is seen, and the one that is pinned.
func (f *Groups) takes(name string, g *group) bool {
	return (f.pins[name] == "" || f.pins[name] == g.uuid) && f.sees(name, g)
}

// sees reports whether a device of the group is accepted.
func (f *Groups) sees(name string, g *group) bool {
	if g.disks == nil {
		return f.accepted(&lvm.BlockDevice{Name: "fake-" + name, Path: "/dev/fake-" + name})
	}
	return slices.ContainsFunc(g.disks, func(d *disk) bool { return f.accepted(&d.BlockDevice) })
}

func (f *Groups) accepted(d *lvm.BlockDevice) bool { return f.accepts == nil || f.accepts(d) }

// Limit implements lvm.Groups. A group of which one device is accepted is seen whole.
func (f *Groups) Limit(accepts func(*lvm.BlockDevice) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.accepts = accepts
}

// Pin implements lvm.Groups.
func (f *Groups) Pin(name, uuid string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pins[name] = uuid
}

// Others implements lvm.Groups. The fake has one group of a name at most.
func (f *Groups) Others(name string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if g := f.groups[name]; g != nil && f.sees(name, g) && !f.takes(name, g) {
		return []string{g.uuid}
	}
	return nil
}

// Metadata implements lvm.Groups.
func (f *Groups) Metadata(name string) (lvm.Metadata, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.groups[name]
	if g == nil || g.missing || !f.takes(name, g) {
		return lvm.Metadata{}, fmt.Errorf("volume group %q: %w", name, lvm.ErrNotFound)
	}
	return lvm.Metadata{Seqno: g.seqno, Size: g.text(), Limit: g.metadataLimit}, nil
}

// text is about as many bytes as LVM's metadata would have.
func (g *group) text() int64 {
	n := int64(1300)
	for _, v := range g.volumes {
		n += 280 + 120*v.layout().Segments(segments(v.extents))
		for _, t := range v.tags {
			n += int64(len(t)) + 4
		}
	}
	return n
}

// segments counts the runs of consecutive extents.
func segments(extents []int64) int64 {
	var n int64
	for i, e := range extents {
		if i == 0 || e != extents[i-1]+1 {
			n++
		}
	}
	return n
}

// Activate implements lvm.Groups.
func (f *Groups) Activate(ctx context.Context, group string, names []string) error {
	if err := f.begin(ctx, OpActivate, group); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.groups[group]
	if g == nil {
		return failure("lvchange", lvm.ErrNotFound, "volume group %q", group)
	}
	var errs []error
	for _, name := range names {
		v := g.volumes[name]
		if v == nil {
			errs = append(errs, failure("lvchange", lvm.ErrNotFound, "volume %s/%s", group, name))
			continue
		}
		f.activate(v)
		if v.thin != nil && !v.skipped() {
			f.activate(v.thin.pool)
		}
	}
	return errors.Join(errs...)
}

// activate gives a volume a device unless it has one, or is to be skipped.
func (f *Groups) activate(v *volume) {
	if v.minor == 0 && !v.skipped() {
		f.minor++
		v.minor = f.minor
	}
}

// Deactivate makes all devices vanish, as a reboot does.
func (f *Groups) Deactivate() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, g := range f.groups {
		for _, v := range g.volumes {
			v.minor, v.mounts, v.handle, v.cipher = 0, 0, nil, nil
		}
	}
}

// Create implements lvm.Groups: lowest extents first.
func (f *Groups) Create(ctx context.Context, o lvm.CreateOptions) error {
	if err := f.begin(ctx, OpCreate, o.Group); err != nil {
		return err
	}
	if err := f.create(o); err != nil {
		return err
	}
	return f.end(OpCreate, o.Group)
}

// SetMostVolumes limits how many volumes a group may have, as vgchange --logicalvolume
// does; zero is no limit.
func (f *Groups) SetMostVolumes(name string, most int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.groups[name].mostVolumes = most
	f.groups[name].seqno++
}

// isFull reports whether the group may not have one more volume.
func (g *group) isFull() bool {
	return g.mostVolumes > 0 && int64(len(g.volumes)) >= g.mostVolumes
}

func (f *Groups) create(o lvm.CreateOptions) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	g, err := f.writable("lvcreate", o.Group)
	if err != nil {
		return err
	}
	if !lvm.ValidName(o.Volume) || o.Extents < 1 {
		return failure("lvcreate", nil, "bad name %q or size %d", o.Volume, o.Extents)
	}
	if i := slices.IndexFunc(o.Tags, func(t string) bool { return !lvm.ValidTag(t) }); i >= 0 {
		return fmt.Errorf("tag %q is malformed", o.Tags[i])
	}
	if g.volumes[o.Volume] != nil {
		return failure("lvcreate", lvm.ErrExists, "volume %s/%s", o.Group, o.Volume)
	}
	if g.isFull() {
		return failure("lvcreate", nil, "maximum number of logical volumes (%d) reached in volume group %s", g.mostVolumes, o.Group)
	}
	f.minor++
	v := &volume{
		uuid: fmt.Sprintf("fake-%s-%s", o.Group, o.Volume), tags: slices.Clone(o.Tags),
		created: time.Now().Truncate(time.Second), minor: f.minor,
	}
	if err := g.layOut("lvcreate", o.Group, v, o.Layout, o.Extents, o.On); err != nil {
		return err
	}
	g.volumes[o.Volume] = v
	if text := g.text(); text > g.metadataLimit {
		delete(g.volumes, o.Volume)
		g.give(v.all())
		return failure("lvcreate", lvm.ErrNoSpace, "metadata of %d bytes exceeds %d", text, g.metadataLimit)
	}
	g.seqno += o.Layout.Commits()
	return nil
}

// all are the extents that a volume takes.
func (v *volume) all() []int64 { return append(v.shape.extra(), v.extents...) }

// Extend implements lvm.Groups.
func (f *Groups) Extend(ctx context.Context, groupName, name string, extents int64, on ...lvm.Share) error {
	if err := f.begin(ctx, OpExtend, groupName); err != nil {
		return err
	}
	if err := f.extend(groupName, name, extents, on); err != nil {
		return err
	}
	return f.end(OpExtend, groupName)
}

func (f *Groups) extend(groupName, name string, extents int64, on []lvm.Share) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	g, err := f.writable("lvextend", groupName)
	if err != nil {
		return err
	}
	v := g.volumes[name]
	if v == nil {
		return failure("lvextend", lvm.ErrNotFound, "volume %s/%s", groupName, name)
	}
	if v.thin != nil {
		return g.extendThin(groupName, name, extents)
	}
	more := extents - int64(len(v.extents))
	if more <= 0 {
		return failure("lvextend", nil, "volume %s/%s is not smaller than %d extents", groupName, name, extents)
	}
	before := *v
	if err := g.layOut("lvextend", groupName, v, v.layout(), more, on); err != nil {
		return err
	}
	if text := g.text(); text > g.metadataLimit {
		had := before.all()
		g.give(slices.DeleteFunc(v.all(), func(e int64) bool { return slices.Contains(had, e) }))
		v.extents, v.shape = before.extents, before.shape
		return failure("lvextend", lvm.ErrNoSpace, "metadata of %d bytes exceeds %d", text, g.metadataLimit)
	}
	g.seqno++
	return nil
}

// Remove implements lvm.Groups.
func (f *Groups) Remove(ctx context.Context, groupName string, names []string) error {
	if err := f.begin(ctx, OpRemove, groupName); err != nil {
		return err
	}
	if err := f.remove(groupName, names); err != nil {
		return err
	}
	return f.end(OpRemove, groupName)
}

func (f *Groups) remove(groupName string, names []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	g, err := f.writable("lvremove", groupName)
	if err != nil {
		return err
	}
	var failed error
	removed := false
	for _, name := range names {
		v := g.volumes[name]
		switch {
		case v == nil:
			failed = failure("lvremove", lvm.ErrNotFound, "volume %s/%s", groupName, name)
		case v.opens() > 0:
			failed = failure("lvremove", lvm.ErrBusy, "volume %s/%s", groupName, name)
		case v.thin != nil:
			g.release(v.thin)
			delete(g.volumes, name)
			g.seqno += lvm.ThinSteps
		case v.pool != nil:
			failed = failure("lvremove", nil, "the thin pool %s/%s is not for callers to remove", groupName, name)
		default:
			g.give(v.all())
			delete(g.volumes, name)
			removed = true
		}
	}
	if removed {
		g.seqno++
	}
	return failed
}

func (f *Groups) begin(ctx context.Context, op Op, group string) error {
	f.mu.Lock()
	f.ops[op]++
	f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return failure(string(op), lvm.ErrTimedOut, "%v", err)
	}
	if f.Before != nil {
		return f.Before(ctx, op, group)
	}
	return nil
}

func (f *Groups) end(op Op, group string) error {
	if f.After != nil {
		return f.After(op, group)
	}
	return nil
}

// writable finds a group that can be changed. The caller holds f.mu.
func (f *Groups) writable(command, name string) (*group, error) {
	g := f.groups[name]
	switch {
	case g == nil:
		return nil, failure(command, lvm.ErrNotFound, "volume group %q", name)
	case g.missing:
		return nil, failure(command, lvm.ErrDeviceMissing, "volume group %q", name)
	}
	return g, nil
}

// take allocates n extents.
func (g *group) take(command string, n int64) ([]int64, error) {
	var got []int64
	for e := int64(0); e < g.extents && int64(len(got)) < n; e++ {
		if g.free[e] {
			got = append(got, e)
		}
	}
	if int64(len(got)) < n {
		return nil, failure(command, lvm.ErrNoSpace, "%d extents needed, %d free", n, len(got))
	}
	for _, e := range got {
		g.free[e] = false
	}
	return got, nil
}

// give frees extents.
func (g *group) give(extents []int64) {
	for _, e := range extents {
		g.free[e] = true
	}
}

func (g *group) report(name string) lvm.Group {
	r := lvm.Group{
		Name: name, UUID: g.uuid, Seqno: g.seqno, ExtentSize: g.extentSize, Extents: g.extents,
		MostVolumes: g.mostVolumes, Allocation: "normal",
	}
	health := lvm.Healthy
	if g.missing {
		r.MissingDevices = 1
		health = lvm.Partial
	}
	var free []int64
	for e, isFree := range g.free {
		if isFree {
			free = append(free, int64(e))
		}
	}
	r.FreeExtents, r.FreeSegments = int64(len(free)), segments(free)
	if g.disks != nil {
		g.reportDisks(&r)
	} else {
		r.Devices = []lvm.PhysicalVolume{{
			Path: "/dev/fake-" + name, UUID: "fake-pv-" + name, Missing: g.missing, Allocatable: true, DAX: g.dax,
			Extents: g.extents, AllocatedExtents: g.extents - r.FreeExtents, DataOffset: g.dataOffset,
		}}
	}
	for i, d := range g.devices(name) {
		r.Devices[i].Free = g.runs(d)
	}
	for vn, v := range g.volumes {
		lv := lvm.Volume{
			Name: vn, UUID: v.uuid, Size: int64(len(v.extents)) * g.extentSize,
			Segments: segments(v.extents), Tags: slices.Clone(v.tags), Created: v.created,
			Attr:   lvm.Attr{Type: '-', Writable: true, Open: v.opens() > 0, Health: health},
			Layout: v.layout(), On: g.on(name, v), Synced: 10000,
		}
		if lv.Layout.IsRAID() {
			lv.Attr.Type = 'r'
		}
		if v.minor != 0 {
			lv.Attr.Activation = lvm.Active
		}
		g.reportThin(v, &lv)
		r.Volumes = append(r.Volumes, lv)
	}
	return r
}

func failure(command string, err error, format string, args ...any) error {
	return &lvm.CommandError{Command: command, ExitCode: 5, Message: fmt.Sprintf(format, args...), Err: err}
}
