// Package lvmfake is an in-memory LVM: volume groups, volumes, devices and their contents,
// behind the interface of package lvm.
//
// It is exact where callers depend on exactness: extents, sequence numbers, errors, and what a
// new volume shows of its extents' former contents. The suite in package lvmtest holds it to
// the real LVM's behaviour.
//
// It survives a "crash" of its user: volumes stay, devices stay active until Deactivate, and
// CloseAll drops open handles.
package lvmfake

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm"
)

// Op names a method of lvm.Groups that runs a command.
type Op string

// The commands on volumes.
const (
	OpScan         Op = "scan"
	OpActivate     Op = "activate"
	OpActivatePool Op = "activate pool"
	OpCreate       Op = "create"
	OpExtend       Op = "extend"
	OpRemove       Op = "remove"
	OpRepair       Op = "repair"
)

const major = 253

// blockSize is the granularity of the contents.
const blockSize = 4096

// Groups is the fake. Its methods are safe for concurrent use. It embeds the types of lvm.Host
// and three for tests: an administrator changes groups, hands plug and mark disks, and tenants
// use volumes.
type Groups struct {
	*machine
	metadata
	volumes
	thinPools
	inspection
	encryption
	provisioning
	administrator
	hands
	tenants
}

var (
	_ lvm.Groups  = (*Groups)(nil)
	_ lvm.Devices = (*Groups)(nil)
)

type (
	metadata      struct{ *machine }
	volumes       struct{ *machine }
	thinPools     struct{ *machine }
	inspection    struct{ *machine }
	encryption    struct{ *machine }
	provisioning  struct{ *machine }
	administrator struct{ *machine }
	hands         struct{ *machine }
	tenants       struct{ *machine }
)

type machine struct {
	mu     sync.Mutex
	groups map[string]*group
	ops    map[Op]int
	minor  uint32
	disks  []*disk
	// away has the groups with no disk plugged in.
	away    map[string]*group
	pins    map[string]lvm.Identity
	accepts func(*blockdev.Device) bool

	// Before, unless nil, runs before a command takes effect; its error fails the command
	// without effect. Set it before use.
	Before func(ctx context.Context, op Op, group string) error
	// After, unless nil, runs after a command took effect; its error fails the command, whose
	// effect stays.
	After      func(op Op, group string) error
	BeforeZero func(group, volume string, off, length int64) error
	// DiscardZeroes makes discarded ranges read as zeroes; otherwise they keep their contents.
	// Set it before use.
	DiscardZeroes bool
	// OldKernel removes the sequence numbers of devices, see blockdev.WriteMark. Set it before
	// use.
	OldKernel bool
	// NotCounted means that the kernel does not count writes to volumes, NeverCounted that it
	// cannot be made to.
	NotCounted, NeverCounted atomic.Bool
}

func (f *machine) lock() (unlock func()) {
	f.mu.Lock()
	return f.mu.Unlock
}

type group struct {
	uuid string
	// device is the UUID of the physical volume of a group from AddGroup.
	device     string
	seqno      uint64
	extentSize int64
	extents    int64
	missing    bool
	foreign    string
	// copied is another device with the group's physical volume, or empty.
	copied     string
	dax        bool
	dataOffset int64
	free       []bool // by physical extent
	// mostVolumes is zero for no limit.
	mostVolumes   int64
	metadataLimit int64
	volumes       map[string]*volume
	// dirty has the last pattern of each block; noise is nonzero for blocks last written
	// through a cipher.
	dirty, noise store
	inconsistent []string
	// disks are in the order of their extents; nil for a group from AddGroup.
	disks []*disk
}

type volume struct {
	uuid    string
	tags    []string
	created time.Time
	extents []int64
	minor   uint32 // zero while not active
	written uint64
	mounts  int
	handle  *handle
	cipher  *cipher
	// pool is set for a thin pool, whose data extents are in extents; thin for a thin volume,
	// which has no extents.
	pool *pool
	thin *thin
	// shape is nil for a linear volume.
	shape *shape
	// snapshots are those with a size of their own. Such a snapshot has an origin, and
	// overwritten is set when that is written to.
	snapshots   []*volume
	origin      *volume
	overwritten bool
}

// New returns an LVM without volume groups.
func New() *Groups {
	m := &machine{groups: map[string]*group{}, ops: map[Op]int{}, away: map[string]*group{}, pins: map[string]lvm.Identity{}}
	return &Groups{
		machine: m, metadata: metadata{m}, volumes: volumes{m}, thinPools: thinPools{m}, inspection: inspection{m},
		encryption: encryption{m}, provisioning: provisioning{m}, administrator: administrator{m}, hands: hands{m}, tenants: tenants{m},
	}
}

func (f *machine) takes(name string, g *group) bool {
	report := g.report(name)
	if g.disks == nil {
		// SetMissing loses one disk of several, so the group is still present.
		report.Devices[0].Missing = false
	}
	return g.copied == "" && g.foreign == "" && (f.pins[name].UUID == "" || report.Fits(f.pins[name])) && f.sees(name, g)
}

func (f *machine) sees(name string, g *group) bool {
	if g.disks == nil {
		return f.accepted(&blockdev.Device{Name: "fake-" + name, Path: "/dev/fake-" + name})
	}
	return slices.ContainsFunc(g.disks, func(d *disk) bool { return f.accepted(&d.Device) })
}

func (f *machine) accepted(d *blockdev.Device) bool { return f.accepts == nil || f.accepts(d) }

// text approximates the size of LVM's metadata.
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

// segments counts runs of consecutive extents.
func segments(extents []int64) int64 {
	var n int64
	for i, e := range extents {
		if i == 0 || e != extents[i-1]+1 {
			n++
		}
	}
	return n
}

func (f *machine) activate(v *volume) {
	if v.minor == 0 && !v.skipped() {
		f.minor++
		v.minor = f.minor
	}
}

func (g *group) isFull() bool {
	return g.mostVolumes > 0 && int64(len(g.volumes)) >= g.mostVolumes
}

func (v *volume) all() []int64 { return append(v.shape.extra(), v.extents...) }

func (f *machine) begin(ctx context.Context, op Op, group string) error {
	f.mu.Lock()
	f.ops[op]++
	before := f.Before // A test may replace it after CloseAll.
	f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return failure(string(op), lvm.ErrTimedOut, "%v", err)
	}
	if before != nil {
		return before(ctx, op, group)
	}
	return nil
}

func (f *machine) end(op Op, group string) error {
	if f.After != nil {
		return f.After(op, group)
	}
	return nil
}

// writable returns a group that can be changed. The caller holds the machine's lock.
func (f *machine) writable(command, name string) (*group, error) {
	g := f.groups[name]
	switch {
	case g == nil:
		return nil, failure(command, lvm.ErrNotFound, "volume group %q", name)
	case g.missing:
		return nil, failure(command, lvm.ErrDeviceMissing, "volume group %q", name)
	}
	return g, nil
}

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
			Path: "/dev/fake-" + name, UUID: g.device, Missing: g.missing, Allocatable: true, DAX: g.dax,
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
		g.reportSnapshots(v, &lv)
		r.Volumes = append(r.Volumes, lv)
	}
	return r
}

func failure(command string, err error, format string, args ...any) error {
	return &lvm.CommandError{Command: command, ExitCode: 5, Message: fmt.Sprintf(format, args...), Err: err}
}

func (f *machine) command(ctx context.Context, op Op, groupName, command string, effect func(*group) error) error {
	if err := f.begin(ctx, op, groupName); err != nil {
		return err
	}
	f.mu.Lock()
	g, err := f.writable(command, groupName)
	if err == nil {
		err = effect(g)
	}
	f.mu.Unlock()
	if err != nil {
		return err
	}
	return f.end(op, groupName)
}

func (v *volume) opens() int {
	n := v.mounts
	if v.handle != nil {
		n++
	}
	if v.cipher != nil {
		n++
	}
	return n
}

// active returns a volume that has a device. The caller holds the machine's lock.
func (f *machine) active(groupName, name string) (*group, *volume, error) {
	g := f.groups[groupName]
	if g == nil || g.volumes[name] == nil || g.volumes[name].minor == 0 {
		return nil, nil, fmt.Errorf("device %s/%s: %w", groupName, name, lvm.ErrNotFound)
	}
	return g, g.volumes[name], nil
}

func (g *group) block(v *volume, off int64) int64 {
	return (v.extents[off/g.extentSize]*g.extentSize + off%g.extentSize) / blockSize
}
