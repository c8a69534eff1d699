//go:build !kernel

package lvmd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// otherUUID differs from the fake group's UUID.
const otherUUID = "fake-another"

// swap replaces the group's disks by another group of the same name.
func (m *machine) swap() {
	m.fake.PlugGroup(testGroup, false)
	m.fake.AddGroup(testGroup, testExtent, testTotal)
	m.fake.SetGroupUUID(testGroup, otherUUID)
}

func (m *machine) swapBack() {
	m.fake.RemoveGroup(testGroup)
	m.fake.PlugGroup(testGroup, true)
}

func (d *daemon) classCondition() (kind, message string) {
	d.t.Helper()
	for _, c := range d.state().GetClasses()[0].GetConditions() {
		return c.GetType(), c.GetMessage()
	}
	return "", ""
}

// checkRefused waits until lvmd rejects the other group, and checks that it keeps the first
// one's volumes and creates nothing in the other.
func (d *daemon) checkRefused(id string) {
	d.t.Helper()
	waittest.Until(d.t, "the other group is refused", func() bool {
		kind, message := d.classCondition()
		return kind == "VolumeGroupReplaced" && strings.Contains(message, otherUUID) && strings.Contains(message, "fake-"+testGroup)
	})
	if got := d.list(); len(got) != 1 || got[0].GetId() != id || len(got[0].GetConditions()) == 0 {
		d.t.Errorf("volumes %v, want %s with a condition", got, id)
	}
	if records := must.Get(d.journal.Volumes())(d.t); len(records) != 1 {
		d.t.Errorf("the journal has %v", records)
	}
	if _, err := d.client.CreateVolume(d.t.Context(), request("more", 1)); status.Code(err) == codes.OK {
		d.t.Error("a volume was made in the other group")
	}
	if got := d.available(); got != 0 {
		d.t.Errorf("%d extents are offered", got)
	}
}

func TestAnotherGroupOfTheNameIsRefusedAndTheFirstComesBack(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	id := d.create(request("v", 4)).GetId()
	m.swap()
	d.checkRefused(id)
	d.stop()
	// The journal records the group's UUID.
	d = m.start(t, probeNow)
	d.checkRefused(id)
	m.swapBack()
	waittest.Until(t, "the volume is well", func() bool {
		got := d.list()
		return len(got) == 1 && got[0].GetId() == id && len(got[0].GetConditions()) == 0
	})
	if got := d.available(); got != testTotal-4 {
		t.Errorf("%d extents are free", got)
	}
}

// The volumes vanish while lvmd runs; then it restarts.
func TestVolumesThatAreAllGoneAtOnceAreKept(t *testing.T) {
	m := newMachine(t)
	d := m.start(t, probeNow)
	a, b := d.create(request("a", 2)).GetId(), d.create(request("b", 2)).GetId()
	must.Succeed(t, m.fake.Remove(t.Context(), testGroup, []string{a, b}))
	refused := func(when string) {
		t.Helper()
		waittest.Until(t, when+": the group is refused", func() bool {
			kind, message := d.classCondition()
			return kind == "VolumeGroupReplaced" && strings.Contains(message, "none of the 2 volumes")
		})
		if got := d.list(); len(got) != 2 || len(got[0].GetConditions()) == 0 || len(got[1].GetConditions()) == 0 {
			t.Errorf("%s: the volumes are %v, want both with a condition", when, got)
		}
		if got := d.available(); got != 0 {
			t.Errorf("%s: %d extents are offered", when, got)
		}
		if _, err := d.client.CreateVolume(t.Context(), request("more", 1)); status.Code(err) == codes.OK {
			t.Errorf("%s: a volume was made", when)
		}
	}
	refused("while lvmd runs")
	d.stop()
	d = m.start(t, probeNow)
	refused("at a start")
	must.Succeed(t, os.WriteFile(filepath.Join(m.state, "accept-volume-group-fake-"+testGroup), nil, 0o600))
	waittest.Until(t, "it is accepted", func() bool { return d.available() == testTotal && len(d.list()) == 0 })
	d.create(request("a", 1))
}

func TestAnAdministratorAcceptsAnotherGroup(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	id := d.create(request("v", 4)).GetId()
	d.stop()
	m.swap()
	d = m.start(t, probeNow)
	d.checkRefused(id)
	file := filepath.Join(m.state, "accept-volume-group-"+otherUUID)
	must.Succeed(t, os.WriteFile(file, nil, 0o600))
	waittest.Until(t, "the other group is used", func() bool { return d.available() == testTotal && len(d.list()) == 0 })
	waittest.Until(t, "the file is removed", func() bool {
		_, err := os.Stat(file)
		return errors.Is(err, fs.ErrNotExist)
	})
	d.create(request("w", 1))
	d.stop()
	// The first group returns, and is the other one now.
	m.fake.RemoveGroup(testGroup)
	m.fake.PlugGroup(testGroup, true)
	d = m.start(t)
	if kind, message := d.classCondition(); kind != "VolumeGroupReplaced" {
		t.Errorf("condition %s: %s", kind, message)
	}
}

func TestGroupsOnDevicesThatAreNotAllowedAreNotSeen(t *testing.T) {
	m := newMachine(t)
	classes := m.config
	d := m.start(t)
	id := d.create(request("v", 4)).GetId()
	d.stop()
	for _, devices := range []string{
		"devices: {allow: [{path: /dev/other*}]}\n",
		"devices: {deny: [{path: /dev/other}, {path: /dev/fake-*}]}\n",
		"devices: {allow: [{path: /dev/fake-*}], deny: [{path: '/dev/*-carve'}]}\n",
	} {
		m.config = classes + devices
		d = m.start(t)
		if kind, message := d.classCondition(); kind != "VolumeGroupMissing" || !strings.Contains(message, "the configuration's key devices allows") {
			t.Errorf("%s: the class' condition is %s: %s", devices, kind, message)
		}
		if got := d.list(); len(got) != 1 || got[0].GetId() != id {
			t.Errorf("%s: the volumes are %v, want %s, whatever is seen", devices, got, id)
		}
		d.stop()
	}
	m.config = classes + "devices: {allow: [{path: /dev/nvme*}, {path: /dev/fake-*}], deny: [{path: /dev/other}]}\n"
	d = m.start(t)
	if got := d.available(); got != testTotal-4 {
		t.Errorf("the group's device is allowed, and %d extents are free, want %d", got, testTotal-4)
	}
	without, err := config.Parse("lvmd.yaml", []byte("apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n"+classes))
	must.Succeed(t, err)
	if err := d.Reload(without); !errors.Is(err, ErrNeedsStart) {
		t.Errorf("devices are allowed while lvmd runs: %v, want %v", err, ErrNeedsStart)
	}
}

func TestAnotherGroupIsTakenAtAStartWhereNoVolumeIsLost(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	d.stop()
	m.swap()
	d = m.start(t)
	if got := d.available(); got != testTotal {
		t.Errorf("%d extents are free", got)
	}
	if got := d.state().GetClasses()[0].GetVgUuid(); got != otherUUID {
		t.Errorf("the group is %s", got)
	}
	if kind, message := d.classCondition(); kind != "VolumeGroupChanged" || !strings.Contains(message, otherUUID) || !strings.Contains(message, "fake-"+testGroup) {
		t.Errorf("condition %s: %s", kind, message)
	}
	d.stop()
	d = m.start(t)
	if kind, message := d.classCondition(); kind != "" {
		t.Errorf("after another start, condition %s: %s", kind, message)
	}
}

// The disks of an empty group are away for a moment.
func TestAnotherGroupIsNotTakenWhileLvmdRuns(t *testing.T) {
	m := newMachine(t)
	d := m.start(t, probeNow)
	m.swap()
	waittest.Until(t, "the other group is refused", func() bool {
		kind, message := d.classCondition()
		return kind == "VolumeGroupReplaced" && strings.Contains(message, otherUUID)
	})
	if _, err := d.client.CreateVolume(t.Context(), request("v", 1)); status.Code(err) == codes.OK {
		t.Error("a volume was made in the other group")
	}
	m.swapBack()
	waittest.Until(t, "the first is used again", func() bool {
		kind, _ := d.classCondition()
		return kind == "" && d.available() == testTotal
	})
	d.create(request("v", 1))
}

// Another group appears beside the remains of a deleted volume.
func TestAVolumeThatIsBeingDeletedIsNotLost(t *testing.T) {
	m := newMachine(t)
	d := m.start(t)
	id := d.create(request("v", 4)).GetId()
	m.fake.PlugGroup(testGroup, false)
	waittest.Until(t, "the group is away", func() bool { return d.available() == 0 })
	d.delete(id)
	d.stop()
	m.fake.PlugGroup(testGroup, true)
	m.swap()
	d = m.start(t)
	if kind, message := d.classCondition(); kind != "VolumeGroupReplaced" {
		t.Errorf("condition %s: %s", kind, message)
	}
	if records := must.Get(d.journal.Volumes())(t); len(records) != 1 {
		t.Errorf("the journal has %v", records)
	}
}

func TestOnlyGroupsOfTheListedUUIDsAreTaken(t *testing.T) {
	m := newMachine(t)
	const listed = "AAAAAA-1111-2222-3333-4444-5555-BBBBBB"
	m.config = "- {name: local, default: true, volumeGroup: carve, volumeGroupUUIDs: [" + listed + "]}\n"
	d := m.start(t)
	if kind, message := d.classCondition(); kind != "VolumeGroupReplaced" || !strings.Contains(message, "fake-"+testGroup) {
		t.Errorf("condition %s: %s", kind, message)
	}
	d.stop()
	m.fake.SetGroupUUID(testGroup, listed)
	d = m.start(t)
	id := d.create(request("v", 1)).GetId()
	if got := d.list(); len(got) != 1 || got[0].GetId() != id {
		t.Errorf("volumes %v", got)
	}
}
