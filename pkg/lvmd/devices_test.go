//go:build !kernel

package lvmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/logging/logtest"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/lvmfake"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/lvmd/provision"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

type deviceGate struct {
	lvm.Devices
	gate *gate
}

func (g *deviceGate) InitDevice(ctx context.Context, o lvm.InitOptions) error {
	return g.gate.around("pvcreate", func() error { return g.Devices.InitDevice(ctx, o) })
}

func (g *deviceGate) CreateGroup(ctx context.Context, o lvm.GroupOptions) error {
	return g.gate.around("vgcreate", func() error { return g.Devices.CreateGroup(ctx, o) })
}

func (g *deviceGate) ExtendGroup(ctx context.Context, group string, devices []string) error {
	return g.gate.around("vgextend", func() error { return g.Devices.ExtendGroup(ctx, group, devices) })
}

func (g *deviceGate) ResizeDevice(ctx context.Context, group, device string) error {
	return g.gate.around("pvresize", func() error { return g.Devices.ResizeDevice(ctx, group, device) })
}

func bare(t *testing.T, group string) *machine {
	t.Helper()
	m := &machine{fake: lvmfake.New(), state: stateDir(t), formatted: map[string]filesystem.FormatOptions{}}
	m.config = "- {name: local, default: true, volumeGroup: carve}\nvolumeGroups:\n- " + group + "\n"
	return m
}

const anyDisk = "{name: carve, devices: [{path: /dev/vd*}]}"

// diskSize holds 63 extents, besides 1 MiB of metadata and 1 MiB of alignment.
const diskSize = 64 * testExtent

func disk(name string) blockdev.Device {
	return blockdev.Device{Name: name, Size: diskSize, IDs: []string{"virtio-" + name}}
}

func withDevices(events chan struct{}) func(*daemon, *Options) {
	return func(d *daemon, o *Options) {
		o.Devices = &deviceGate{Devices: d.machine.fake, gate: d.gate}
		o.BlockEvents = events
		o.provisioning = provision.Intervals{Examine: time.Millisecond, Retry: 10 * time.Millisecond}
		o.poolRetry = 10 * time.Millisecond
	}
}

// looking counts listings of the block devices, the first step of each look at the groups.
type looking struct {
	lvm.Devices
	count atomic.Int32
}

func (l *looking) BlockDevices() ([]blockdev.Device, error) {
	l.count.Add(1)
	return l.Devices.BlockDevices()
}

func (l *looking) on(_ *daemon, o *Options) { l.Devices, o.Devices = o.Devices, l }

// again returns when lvmd has completed a look for one of the events: only then does it look
// once more.
func (l *looking) again(t *testing.T, events chan<- struct{}) {
	t.Helper()
	for range 3 { // An earlier event may have caused the first look.
		before := l.count.Load()
		events <- struct{}{}
		waittest.Until(t, "lvmd looks at its groups", func() bool { return l.count.Load() > before })
	}
}

func (d *daemon) refusedFor(device string) string {
	if why := d.provisioned.refusals(testGroup)[device]; why != nil {
		return why.Kind
	}
	return ""
}

func (d *daemon) devices() []string {
	var paths []string
	for _, pv := range d.provisioned.Scanned(testGroup).Devices {
		paths = append(paths, pv.Path)
	}
	return paths
}

func TestAGroupIsMadeOfTheSelectedDisksAndFoundAgain(t *testing.T) {
	m := bare(t, anyDisk)
	m.fake.AddDisk(disk("vdb"))
	m.fake.AddDisk(disk("vdc"))
	m.fake.AddDisk(disk("sda"))
	d := m.start(t, withDevices(nil))
	if got, want := d.available(), int64(2*63); got != want {
		t.Errorf("%d extents, want %d", got, want)
	}
	if got, want := d.devices(), []string{"/dev/vdb", "/dev/vdc"}; !slices.Equal(got, want) {
		t.Errorf("devices %q, want %q", got, want)
	}
	v := d.create(request("v", 100))
	d.stop()
	before := m.fake.Commands(lvmfake.OpScan)
	m.fake.ChangeDisk("vdb", func(b *blockdev.Device) { b.Holders = []string{"dm-0"} }) // v is still mapped
	var log logtest.Recorder
	d = m.start(t, withDevices(nil), func(_ *daemon, o *Options) { o.Log = log.Logger() })
	if got := log.Find(func(r logtest.Record) bool { return strings.Contains(r.Message, "device is not used") }); len(got) != 0 {
		t.Errorf("a restart logged of the group's own disks: %v", got)
	}
	if n := m.fake.Commands(lvmfake.OpScan) - before; n != 1 {
		t.Errorf("%d scans at a start with nothing to make", n)
	}
	if got := d.list(); len(got) != 1 || got[0].GetId() != v.GetId() {
		t.Errorf("volumes %v", got)
	}
	for op, want := range map[lvmfake.Op]int{lvmfake.OpInitDevice: 2, lvmfake.OpCreateGroup: 1, lvmfake.OpExtendGroup: 1, lvmfake.OpResizeDevice: 0} {
		if got := m.fake.Commands(op); got != want {
			t.Errorf("%d commands %s, want %d", got, op, want)
		}
	}
	d.checkModel()
}

func TestADeviceWithAnythingOnItIsNotTouched(t *testing.T) {
	m := bare(t, anyDisk)
	m.fake.AddDisk(disk("vdb"))
	m.fake.AddDisk(disk("vdc"), "ext4")
	m.fake.AddDisk(disk("vdd"), "gpt")
	m.fake.AddDisk(disk("vde"))
	m.fake.ClaimDisk("vde", true)
	m.fake.AddDisk(disk("vdf"))
	other := ondisk.NewUUID()
	must.Succeed(t, m.fake.InitDevice(t.Context(), lvm.InitOptions{Device: "/dev/vdf", UUID: other, DataAlignment: 1 << 20}))
	m.fake.AddDisk(disk("vdg"))
	must.Succeed(t, m.fake.InitDevice(t.Context(), lvm.InitOptions{Device: "/dev/vdg", UUID: ondisk.NewUUID(), DataAlignment: 1 << 20}))
	must.Succeed(t, m.fake.CreateGroup(t.Context(), lvm.GroupOptions{Group: "other", Devices: []string{"/dev/vdg"}, ExtentSize: testExtent}))
	for name, change := range map[string]func(*blockdev.Device){
		"vdh": func(b *blockdev.Device) { b.ReadOnly = true },
		"vdi": func(b *blockdev.Device) { b.Partitions = []string{"vdi1"} },
		"vdj": func(b *blockdev.Device) { b.Holders = []string{"md0"} },
		"vdk": func(b *blockdev.Device) { b.Size = 1 << 20 },
		// These are not even candidates:
		"vdi1": func(b *blockdev.Device) { b.Parent = "vdi" },
		"vdl":  func(b *blockdev.Device) { b.Virtual = true },
		"vdm":  func(b *blockdev.Device) { b.Mapping.LogicalVolume = true },
	} {
		m.fake.AddDisk(disk(name))
		m.fake.ChangeDisk(name, change)
	}
	d := m.start(t, withDevices(nil))
	if got := d.devices(); !slices.Equal(got, []string{"/dev/vdb"}) {
		t.Errorf("devices %q", got)
	}
	for name, want := range map[string]string{
		"vdb": "", "vdc": "signature", "vdd": "partitioned", "vde": "in_use", "vdf": "signature", "vdg": "other_group",
		"vdh": "read_only", "vdi": "partitioned", "vdj": "in_use", "vdk": "too_small", "vdi1": "", "vdl": "", "vdm": "",
	} {
		if got := d.refusedFor("/dev/" + name); got != want {
			t.Errorf("%s is refused for %q, want %q", name, got, want)
		}
	}
	if why := d.provisioned.refusals(testGroup)["/dev/vdk"]; why == nil || why.Message != "it has 1Mi; at least 32Mi is needed" {
		t.Errorf("vdk is refused: %v", why)
	}
	if n := m.fake.Commands(lvmfake.OpInitDevice); n != 3 {
		t.Errorf("%d devices were initialised, want the test's two and one", n)
	}
	families := must.Get(d.metrics.Registry.Gather())(t)
	refused := 0
	for _, f := range families {
		if f.GetName() == "carve_lvmd_device_refused" {
			refused = len(f.GetMetric())
		}
	}
	if refused != 9 {
		t.Errorf("%d devices in the metric, want 9", refused)
	}
}

func TestASignatureIsDestroyedOnlyOnAListedDevice(t *testing.T) {
	m := bare(t, "{name: carve, devices: [{path: /dev/vd*}], allowSignatures: [/dev/vdb, /dev/disk/by-id/virtio-vdc, /dev/vdd, /dev/vde]}")
	m.fake.AddDisk(disk("vdb"), "ext4")
	m.fake.AddDisk(disk("vdc"), "xfs")
	m.fake.AddDisk(disk("vdd"), "gpt")
	m.fake.AddDisk(disk("vde"), "ext4")
	m.fake.ClaimDisk("vde", true)
	m.fake.AddDisk(disk("vdf"), "ext4")
	d := m.start(t, withDevices(nil))
	if got := d.devices(); !slices.Equal(got, []string{"/dev/vdb", "/dev/vdc"}) {
		t.Errorf("devices %q", got)
	}
	for name, want := range map[string]string{"vdd": "partitioned", "vde": "in_use", "vdf": "signature"} {
		if got := d.refusedFor("/dev/" + name); got != want {
			t.Errorf("%s is refused for %q, want %q", name, got, want)
		}
	}
}

func TestAPartitionOrALoopDeviceIsUsedWhenItIsNamed(t *testing.T) {
	m := bare(t, "{name: carve, devices: [{path: /dev/vdb1}, {byID: virtio-loop7}]}")
	m.fake.AddDisk(disk("vdb"), "gpt")
	m.fake.AddDisk(disk("vdb1"))
	m.fake.ChangeDisk("vdb1", func(b *blockdev.Device) { b.Parent = "vdb" })
	m.fake.AddDisk(disk("loop7"))
	m.fake.ChangeDisk("loop7", func(b *blockdev.Device) { b.Virtual = true })
	d := m.start(t, withDevices(nil))
	if got := d.devices(); !slices.Equal(got, []string{"/dev/vdb1", "/dev/loop7"}) {
		t.Errorf("devices %q", got)
	}
}

func TestADeviceThatLiesOnAVolumeIsNotUsedWhereItIsNamed(t *testing.T) {
	m := bare(t, "{name: carve, devices: [{path: /dev/loop7}], allowSignatures: [/dev/loop7]}")
	m.fake.AddDisk(disk("loop7"), "ext4")
	m.fake.ChangeDisk("loop7", func(b *blockdev.Device) { b.Virtual, b.UserData = true, "it lies on the logical volume carve-v" })
	d := m.start(t, withDevices(nil))
	if got := d.refusedFor("/dev/loop7"); got != "on_volume" {
		t.Errorf("it is refused for %q, want on_volume", got)
	}
	if _, message := d.classCondition(); !strings.Contains(message, "carve-v") {
		t.Errorf("the class' condition is %q, want one that names the volume", message)
	}
	if n := m.fake.Commands(lvmfake.OpInitDevice); n != 0 {
		t.Errorf("%d physical volumes were made", n)
	}
}

func TestWhyThereIsNoGroupIsReportedUntilThereIsOne(t *testing.T) {
	m := bare(t, anyDisk)
	m.fake.AddDisk(disk("vdb"), "ext4")
	events := make(chan struct{}, 1)
	d := m.start(t, withDevices(events))
	c := d.state().GetClasses()[0]
	want := `volume group "carve" does not exist on this node: no selected device can be used: /dev/vdb: it has a signature (ext4); look at what it holds (lsblk -f), then remove that with wipefs, or list the device under allowSignatures`
	if len(c.GetConditions()) != 1 || c.GetConditions()[0].GetMessage() != want {
		t.Errorf("class %v\nwant %s", c, want)
	}
	_, err := d.client.CreateVolume(t.Context(), request("v", 1))
	wantCode(t, err, codes.Unavailable, names.ReasonDeviceMissing)
	m.fake.WipeDisk("vdb")
	events <- struct{}{}
	waittest.Until(t, "the group is made", func() bool { return d.available() == 63 })
	if c := d.state().GetClasses()[0]; len(c.GetConditions()) != 0 {
		t.Errorf("class %v", c)
	}
	d.create(request("v", 1))
}

func TestAThinClassGetsItsPoolInAGroupThatIsMadeLater(t *testing.T) {
	m := bare(t, anyDisk)
	m.config = strings.Replace(m.config, "volumeGroup: carve", "volumeGroup: carve, type: thin, thin: {pool: pool, size: 40Mi}", 1)
	events := make(chan struct{}, 1)
	d := m.start(t, withDevices(events))
	if got := d.available(); got != 0 {
		t.Errorf("%d extents", got)
	}
	m.fake.AddDisk(disk("vdb"))
	events <- struct{}{}
	waittest.Until(t, "the pool is there", func() bool { return d.available() == 10 })
	d.create(request("v", 1))
}

// Zero intervals would repeat without end whatever repeats by time.
func TestARefusedDeviceIsNotLookedAtAgainWithoutAnEvent(t *testing.T) {
	m := bare(t, anyDisk)
	m.fake.AddDisk(disk("vdb"), "ext4")
	events := make(chan struct{})
	d := m.start(t, withDevices(events), func(_ *daemon, o *Options) {
		o.provisioning = provision.Intervals{Examine: time.Nanosecond, Retry: time.Nanosecond}
	})
	for n := 1; n <= 10; n++ {
		waittest.Until(t, "the device is examined", func() bool { return m.fake.Commands("examine") >= n })
		if got := m.fake.Commands("examine"); got > n {
			t.Fatalf("examined %d times after %d events", got, n-1)
		}
		events <- struct{}{}
	}
	if why := d.refusedFor("/dev/vdb"); why != "signature" {
		t.Errorf("refused for %q", why)
	}
}

func TestADiskThatAppearsIsAddedAndOneThatGrowsIsUsed(t *testing.T) {
	m := bare(t, anyDisk)
	m.fake.AddDisk(disk("vdb"))
	events := make(chan struct{}, 1)
	var looks looking
	d := m.start(t, withDevices(events), looks.on)
	d.create(request("v", 60))
	m.fake.AddDisk(disk("vdc"))
	events <- struct{}{}
	waittest.Until(t, "the disk is added", func() bool { return d.available() == 3+63 })
	m.fake.ChangeDisk("vdc", func(b *blockdev.Device) { b.Size += 10 * testExtent })
	events <- struct{}{}
	waittest.Until(t, "the disk is used to its end", func() bool { return d.available() == 3+73 })
	d.create(request("w", 76))
	d.checkModel()
	scans := m.fake.Commands(lvmfake.OpScan)
	looks.again(t, events)
	if n := m.fake.Commands(lvmfake.OpScan); n != scans {
		t.Errorf("%d scans for events that changed nothing", n-scans)
	}
	if got := d.list(); len(got) != 2 {
		t.Errorf("volumes %v", got)
	}
}

func TestAGroupWhoseDisksAreLateIsNotMadeAgain(t *testing.T) {
	m := bare(t, anyDisk)
	m.fake.AddDisk(disk("vdb"))
	d := m.start(t, withDevices(nil))
	v := d.create(request("v", 1))
	uuid := v.GetVgUuid()
	d.stop()
	m.fake.PlugDisk("vdb", false)
	m.fake.AddDisk(disk("vdc"))
	events := make(chan struct{}, 1)
	d = m.start(t, withDevices(events))
	if why := d.refusedFor("/dev/vdc"); why != "waiting" {
		t.Fatalf("the new disk is refused for %q", why)
	}
	m.fake.PlugDisk("vdb", true)
	events <- struct{}{}
	waittest.Until(t, "the group is back, with the new disk", func() bool { return d.available() == 62+63 })
	if got := d.list(); len(got) != 1 || got[0].GetVgUuid() != uuid {
		t.Errorf("volumes %v", got)
	}
	d.stop()
	// Without them, lvmd never creates another group while volumes exist.
	m.fake.PlugDisk("vdb", false)
	m.fake.PlugDisk("vdc", false)
	m.fake.AddDisk(disk("vdd"))
	d = m.start(t, withDevices(events), shortReturnGrace)
	give := filepath.Join(m.state, "replace-volume-group-"+uuid)
	d.waitUntilKept(give)
	if got := d.list(); len(got) != 1 || got[0].GetId() != v.GetId() {
		t.Errorf("volumes %v", got)
	}
	must.Succeed(t, os.WriteFile(give, nil, 0o600))
	waittest.Until(t, "a new group is made", func() bool { return d.available() == 63 })
	if c := d.state().GetClasses()[0]; c.GetVgUuid() == uuid || len(d.list()) != 0 {
		t.Errorf("class %v, volumes %v", c, d.list())
	}
	if _, err := os.Stat(give); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file that gives the group up is left: %v", err)
	}
}

// shortReturnGrace lets lvmd give up a group that is missing at its start almost at once.
func shortReturnGrace(_ *daemon, o *Options) { o.provisioning.ReturnGrace = time.Millisecond }

// waitUntilKept waits until several attempts created no group, and the class names the file
// that gives up the previous one.
func (d *daemon) waitUntilKept(file string) {
	d.t.Helper()
	waittest.Until(d.t, "the group is kept", func() bool {
		_, message := d.classCondition()
		return d.refusedFor("/dev/vdd") == "waiting" && strings.Contains(message, "touch "+file)
	})
	before := d.machine.fake.Commands(lvmfake.OpScan)
	waittest.Until(d.t, "it was tried again", func() bool { return d.machine.fake.Commands(lvmfake.OpScan) > before+2 })
	if got := d.available(); got != 0 {
		d.t.Errorf("%d extents are offered", got)
	}
}

func TestAGroupWithoutVolumesIsMadeAgainAtAStartOnly(t *testing.T) {
	m := bare(t, anyDisk)
	m.fake.AddDisk(disk("vdb"))
	events := make(chan struct{}, 1)
	d := m.start(t, withDevices(events), shortReturnGrace)
	uuid := d.state().GetClasses()[0].GetVgUuid()
	m.fake.PlugDisk("vdb", false)
	m.fake.AddDisk(disk("vdd"))
	events <- struct{}{}
	d.waitUntilKept(filepath.Join(m.state, "replace-volume-group-"+uuid))
	m.fake.PlugDisk("vdb", true)
	events <- struct{}{}
	waittest.Until(t, "the group is back, with the new disk", func() bool { return d.available() == 2*63 })
	if c := d.state().GetClasses()[0]; c.GetVgUuid() != uuid {
		t.Errorf("class %v, want the group %s", c, uuid)
	}
	d.stop()
	m.fake.PlugDisk("vdb", false)
	m.fake.PlugDisk("vdd", false)
	m.fake.AddDisk(disk("vde"))
	d = m.start(t, withDevices(events), shortReturnGrace)
	waittest.Until(t, "a new group is made", func() bool { return d.available() == 63 })
	if kind, message := d.classCondition(); kind != "VolumeGroupChanged" || !strings.Contains(message, uuid) {
		t.Errorf("condition %s: %s", kind, message)
	}
}

// lvmd ends before the second disk joins, and the next one starts without the first disk.
func TestAPhysicalVolumeThatWasToJoinMakesNoGroupInPlaceOfOneThatIsAway(t *testing.T) {
	m := bare(t, anyDisk)
	m.fake.AddDisk(disk("vdb"))
	d := m.start(t, withDevices(nil))
	uuid := d.create(request("v", 1)).GetVgUuid()
	d.stop()
	m.fake.AddDisk(disk("vdd"))
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpExtendGroup {
			return errors.New("vgextend: I/O error")
		}
		return nil
	}
	d = m.start(t, withDevices(nil))
	if why := d.refusedFor("/dev/vdd"); why != "failed" {
		t.Fatalf("the second disk is refused for %q", why)
	}
	d.stop()
	m.fake.Before = nil
	m.fake.PlugDisk("vdb", false)
	d = m.start(t, withDevices(nil), shortReturnGrace)
	d.waitUntilKept(filepath.Join(m.state, "replace-volume-group-"+uuid))
	m.fake.PlugDisk("vdb", true)
	waittest.Until(t, "the group is back, with the second disk", func() bool { return d.available() == 62+63 })
}

func TestDiskWithOtherSectorsDoesNotJoin(t *testing.T) {
	m := bare(t, anyDisk)
	for _, d := range []struct {
		name   string
		sector int64
	}{{"vdb", 512}, {"vdc", 4096}, {"vdd", 512}} {
		m.fake.AddDisk(disk(d.name))
		m.fake.ChangeDisk(d.name, func(b *blockdev.Device) { b.LogicalBlockSize = d.sector })
	}
	for _, state := range []string{"a new group", "a group that exists"} {
		d := m.start(t, withDevices(nil))
		if got := d.devices(); !slices.Equal(got, []string{"/dev/vdb", "/dev/vdd"}) || d.refusedFor("/dev/vdc") != "sectors" {
			t.Errorf("%s: on %q; the other disk is refused for %q", state, got, d.refusedFor("/dev/vdc"))
		}
		d.stop()
	}
	if n := m.fake.Commands(lvmfake.OpInitDevice); n != 2 {
		t.Errorf("%d physical volumes were made, want 2", n)
	}
}

func TestALoopFileIsAttachedOnceAndGrows(t *testing.T) {
	m := bare(t, "{name: carve, loopFile: {path: /var/lib/carve/loop.img, size: 256Mi}}")
	d := m.start(t, withDevices(nil))
	if got := d.available(); got != 63 {
		t.Errorf("%d extents", got)
	}
	d.create(request("v", 1))
	d.stop()
	m.config = strings.Replace(m.config, "256Mi", "296Mi", 1)
	d = m.start(t, withDevices(nil))
	if got := d.available(); got != 62+10 || len(d.devices()) != 1 {
		t.Errorf("%d extents on %q", got, d.devices())
	}
	if all, _ := m.fake.BlockDevices(); len(all) != 1 {
		t.Errorf("devices %v", all)
	}
}

func TestAGroupForPersistentMemoryIsAlignedAndNeedsIt(t *testing.T) {
	m := bare(t, "{name: carve, medium: pmem, devices: [{path: /dev/pmem*}]}")
	m.config = strings.Replace(m.config, "volumeGroup: carve", "volumeGroup: carve, medium: pmem", 1)
	m.fake.AddDisk(disk("pmem0"))
	m.fake.ChangeDisk("pmem0", func(b *blockdev.Device) { b.DAX = true })
	m.fake.AddDisk(disk("pmem1"))
	d := m.start(t, withDevices(nil))
	if got := d.devices(); !slices.Equal(got, []string{"/dev/pmem0"}) || d.refusedFor("/dev/pmem1") != "not_dax" {
		t.Errorf("devices %q; the other is refused for %q", got, d.refusedFor("/dev/pmem1"))
	}
	found, err := m.fake.Scan(t.Context(), []string{testGroup})
	if err != nil || found[0].ExtentSize != 2<<20 || found[0].Devices[0].DataOffset%(2<<20) != 0 {
		t.Errorf("group %+v, error %v", found, err)
	}
}

func TestADiskThatCannotBeUsedLeavesTheOthers(t *testing.T) {
	m := bare(t, anyDisk)
	m.fake.AddGroup("other", testExtent, testTotal)
	m.config = "- {name: second, volumeGroup: other}\n" + m.config
	m.fake.AddDisk(disk("vdb"))
	m.fake.AddDisk(disk("vdc"))
	failures := 1
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpCreateGroup && failures > 0 {
			failures--
			return fmt.Errorf("vgcreate: I/O error")
		}
		return nil
	}
	d := m.start(t, withDevices(nil))
	r := request("v", 1)
	r.DeviceClass = "second"
	d.create(r)
	waittest.Until(t, "the group is made by another attempt", func() bool {
		return d.state().GetClasses()[1].GetAvailableBytes() == 2*63*testExtent
	})
	if got := d.devices(); !slices.Equal(got, []string{"/dev/vdc", "/dev/vdb"}) {
		t.Errorf("devices %q", got)
	}
	if n := m.fake.Commands(lvmfake.OpInitDevice); n != 2 {
		t.Errorf("%d physical volumes were made", n)
	}
}

func TestWhereverLvmdCrashesAGroupIsFinished(t *testing.T) {
	for _, c := range []struct {
		name    string
		before  func(t *testing.T, m *machine)
		extents int64
		places  int
	}{
		{"while it makes one of two disks", func(_ *testing.T, m *machine) {
			m.fake.AddDisk(disk("vdb"))
			m.fake.AddDisk(disk("vdc"))
		}, 2 * 63, 12},
		{"while it destroys what it may destroy", func(_ *testing.T, m *machine) {
			m.config = strings.Replace(m.config, "vd*}]", "vd*}], allowSignatures: [/dev/vdb]", 1)
			m.fake.AddDisk(disk("vdb"), "ext4")
		}, 63, 8},
		{"while it grows one and adds a disk", func(t *testing.T, m *machine) {
			m.fake.AddDisk(disk("vdb"))
			m.start(t, withDevices(nil)).stop()
			m.fake.ChangeDisk("vdb", func(b *blockdev.Device) { b.Size += 10 * testExtent })
			m.fake.AddDisk(disk("vdc"))
		}, 73 + 63, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			survived := false
			at := 1
			for ; !survived; at++ {
				m := bare(t, anyDisk)
				c.before(t, m)
				d, err := m.tryStart(t, withDevices(nil), func(d *daemon, _ *Options) { d.gate.crashAt, d.gate.done = at, make(chan struct{}) })
				if err == nil {
					survived = true
					d.kill()
				}
				m.fake.AddDisk(disk("vdz"))
				last := m.start(t, withDevices(nil))
				if got, want := last.available(), c.extents+63; got != want {
					t.Fatalf("crashed at %d: %d extents are there, want %d; refused: %q %q %q", at, got, want,
						last.refusedFor("/dev/vdb"), last.refusedFor("/dev/vdc"), last.refusedFor("/dev/vdz"))
				}
				records, err := last.journal.Devices(testGroup)
				if err != nil || len(records) != len(last.devices()) {
					t.Errorf("crashed at %d: records %v, error %v", at, records, err)
				}
				for _, r := range records {
					if !r.Joined {
						t.Errorf("crashed at %d: %+v is still an intent", at, r)
					}
				}
				last.checkModel()
				last.stop()
			}
			if at-1 < c.places {
				t.Errorf("lvmd crashed at %d places only", at-1)
			}
		})
	}
}

// After lvmd crashed, the disk that it made a physical volume comes back by another name, and a
// blank disk by the former name.
func TestAPhysicalVolumeKeepsItsUUIDToItselfWhenDisksChangeTheirNames(t *testing.T) {
	for _, selected := range []string{anyDisk, "{name: carve, devices: [{path: /dev/vdb}]}"} {
		m := bare(t, selected)
		m.fake.AddDisk(disk("vdb"))
		m.fake.AddDisk(disk("vdc"))
		if _, err := m.tryStart(t, withDevices(nil), func(d *daemon, _ *Options) { d.gate.crashNext("after pvcreate") }); err == nil {
			t.Fatal("lvmd did not crash")
		}
		m.fake.SwapDisks("vdb", "vdc")
		d := m.start(t, withDevices(nil))
		var uuids []string
		for _, name := range []string{"/dev/vdb", "/dev/vdc"} {
			uuids = append(uuids, must.Get(m.fake.Label(name))(t).UUID)
		}
		if uuids[0] == uuids[1] {
			t.Errorf("%s: both disks have the UUID %s", selected, uuids[0])
		}
		if got, want := len(d.devices()), strings.Count(selected, "*")+1; got != want {
			t.Errorf("%s: %d disks are in the group, want %d", selected, got, want)
		}
		d.stop()
	}
}

func TestAnAttemptThatFailsIsNotRepeatedForEveryEvent(t *testing.T) {
	m := bare(t, anyDisk)
	m.fake.AddDisk(disk("vdb"))
	m.fake.Before = func(_ context.Context, op lvmfake.Op, _ string) error {
		if op == lvmfake.OpInitDevice {
			return fmt.Errorf("pvcreate: I/O error")
		}
		return nil
	}
	events := make(chan struct{})
	var looks looking
	d := m.start(t, withDevices(events), looks.on, func(_ *daemon, o *Options) {
		o.provisioning.Retry, o.poolRetry = time.Hour, time.Hour
	})
	looks.again(t, events)
	if n := m.fake.Commands(lvmfake.OpInitDevice); n != 1 || d.refusedFor("/dev/vdb") != "failed" {
		t.Errorf("%d attempts, refused for %q", n, d.refusedFor("/dev/vdb"))
	}
	if c := d.state().GetClasses()[0].GetConditions(); len(c) != 1 || !strings.Contains(c[0].GetMessage(), "I/O error") {
		t.Errorf("conditions %v", c)
	}
}
