package lvmtest

import (
	"testing"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/must"
)

// DeviceEnv is a machine with two blank disks.
type DeviceEnv struct {
	Groups        lvm.Groups
	Devices       lvm.Devices
	First, Second string
	// Group is an unused name.
	Group string
	// Mark puts a file system on a disk.
	Mark func(device string)
}

// RunDevices runs the suite of lvm.Devices. setup returns a fresh DeviceEnv and registers its
// clean-up on t.
func RunDevices(t *testing.T, setup func(t *testing.T) DeviceEnv) {
	for _, c := range []struct {
		name string
		test func(*testing.T, DeviceEnv)
	}{
		{"a blank disk is listed, examined and found empty", blank},
		{"a disk becomes a physical volume without a group, and then a group", made},
		{"a group is made once", madeOnce},
		{"a disk that is added gives its extents", added},
		{"a disk with something on it is not overwritten unless that is asked for", marked},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, setup(t)) })
	}
}

func blank(t *testing.T, e DeviceEnv) {
	all, err := e.Devices.BlockDevices()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, d := range all {
		found = found || d.Path == e.First && d.Size > 32<<20 && !d.ReadOnly && len(d.Holders) == 0
	}
	if !found {
		t.Errorf("%s is not among %+v", e.First, all)
	}
	if c, err := e.Devices.Examine(t.Context(), e.First); err != nil || !c.Empty() {
		t.Errorf("found %s, error %v", &c, err)
	}
	_, err = e.Devices.Label(e.First)
	wantErr(t, "Label", err, lvm.ErrNotFound)
	_, err = e.Devices.Label("/dev/carve-no-such-device")
	wantErr(t, "Label of no device", err, lvm.ErrNotFound)
	_, err = e.Devices.Examine(t.Context(), "/dev/carve-no-such-device")
	wantErr(t, "Examine of no device", err, lvm.ErrNotFound)
}

// init returns the physical volume's UUID.
func (e DeviceEnv) init(t *testing.T, device string) string {
	t.Helper()
	uuid := ondisk.NewUUID()
	must.Succeed(t, e.Devices.InitDevice(t.Context(), lvm.InitOptions{
		Device: device, UUID: uuid, MetadataSize: 2 << 20, DataAlignment: 1 << 20,
	}))
	return uuid
}

func (e DeviceEnv) create(t *testing.T) {
	t.Helper()
	must.Succeed(t, e.Devices.CreateGroup(t.Context(), lvm.GroupOptions{
		Group: e.Group, Devices: []string{e.First}, ExtentSize: 2 << 20,
	}))
}

func (e DeviceEnv) scan(t *testing.T) lvm.Group {
	t.Helper()
	return Env{Groups: e.Groups, Group: e.Group}.scan(t)
}

func made(t *testing.T, e DeviceEnv) {
	uuid := e.init(t, e.First)
	l, err := e.Devices.Label(e.First)
	if err != nil || l.UUID != uuid || !l.Orphan || l.Group != "" || l.KnownSize != l.Size {
		t.Fatalf("label %+v, error %v; its UUID is %s", l, err, uuid)
	}
	c, err := e.Devices.Examine(t.Context(), e.First)
	if err != nil || c.Label == nil || c.Label.UUID != uuid || !c.Label.Orphan || c.Partitioned || c.String() != "LVM2_member" {
		t.Errorf("contents %+v, error %v", c, err)
	}
	e.create(t)
	g := e.scan(t)
	if len(g.Devices) != 1 || g.Devices[0].UUID != uuid || g.ExtentSize != 2<<20 || g.Devices[0].DataOffset < 2<<20 || g.Devices[0].DataOffset%(1<<20) != 0 {
		t.Errorf("group %+v", g)
	}
	if l, err = e.Devices.Label(e.First); err != nil || l.Group != e.Group || l.Orphan {
		t.Errorf("label %+v, error %v", l, err)
	}
	if m, err := e.Groups.Metadata(e.Group); err != nil || m.Limit < 1<<20-(4<<10) {
		t.Errorf("metadata %+v, error %v", m, err)
	}
	// A volume proves that the group is usable.
	Env{Groups: e.Groups, Group: e.Group}.create(t, "cv1", 1)
}

func madeOnce(t *testing.T, e DeviceEnv) {
	e.init(t, e.First)
	e.create(t)
	e.init(t, e.Second)
	err := e.Devices.CreateGroup(t.Context(), lvm.GroupOptions{Group: e.Group, Devices: []string{e.Second}, ExtentSize: 2 << 20})
	wantErr(t, "a second group of the same name", err, lvm.ErrExists)
	if l, err := e.Devices.Label(e.Second); err != nil || !l.Orphan {
		t.Errorf("label %+v, error %v", l, err)
	}
}

func added(t *testing.T, e DeviceEnv) {
	e.init(t, e.First)
	e.create(t)
	before := e.scan(t)
	uuid := e.init(t, e.Second)
	must.Succeed(t, e.Devices.ExtendGroup(t.Context(), e.Group, []string{e.Second}))
	// The addition is known without a scan.
	if m, err := e.Groups.Metadata(e.Group); err != nil || m.Seqno != before.Seqno+1 {
		t.Errorf("metadata %+v, error %v; it was %d", m, err, before.Seqno)
	}
	after := e.scan(t)
	if len(after.Devices) != 2 || after.Devices[1].UUID != uuid || after.MissingDevices != 0 || after.Allocatable() <= before.Allocatable() {
		t.Errorf("group %+v, then %+v", before, after)
	}
	// The disk has not grown, so nothing important changes.
	if err := e.Devices.ResizeDevice(t.Context(), e.Group, e.First); err != nil {
		t.Error(err)
	}
	if again := e.scan(t); again.Extents != after.Extents {
		t.Errorf("%d extents, then %d", after.Extents, again.Extents)
	}
}

func marked(t *testing.T, e DeviceEnv) {
	e.Mark(e.First)
	c, err := e.Devices.Examine(t.Context(), e.First)
	if err != nil || c.Empty() || c.String() != "ext4" {
		t.Fatalf("found %s, error %v", &c, err)
	}
	o := lvm.InitOptions{Device: e.First, UUID: ondisk.NewUUID(), MetadataSize: 1 << 20, DataAlignment: 1 << 20}
	if err := e.Devices.InitDevice(t.Context(), o); err == nil {
		t.Error("the file system was overwritten")
	}
	if again, err := e.Devices.Examine(t.Context(), e.First); err != nil || again.String() != "ext4" {
		t.Errorf("found %s, error %v", &again, err)
	}
	o.Overwrite = true
	must.Succeed(t, e.Devices.InitDevice(t.Context(), o))
	if c, err := e.Devices.Examine(t.Context(), e.First); err != nil || c.String() != "LVM2_member" {
		t.Errorf("found %s, error %v", &c, err)
	}
}
