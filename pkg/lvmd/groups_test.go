//go:build !kernel

package lvmd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func TestAGroupThatMayHaveSoManyVolumesOffersNoMore(t *testing.T) {
	m := newMachine(t)
	m.fake.SetMostVolumes(testGroup, 2)
	d := m.start(t)
	first := d.create(fsRequest("pvc-1", 4, "ext4"))
	raw := d.create(request("pvc-2", 1))
	if got := d.available(); got != 0 {
		t.Errorf("%d extents are offered in a group that may have no more volumes", got)
	}
	_, err := d.client.CreateVolume(t.Context(), request("pvc-3", 1))
	wantCode(t, err, codes.ResourceExhausted, names.ReasonNoSpace)
	if err == nil || !strings.Contains(err.Error(), "vgchange --logicalvolume 0 "+testGroup) {
		t.Errorf("error %v, want one that says what lifts the limit", err)
	}
	must.Get(d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: first.GetId(), RequiredBytes: 5 * testExtent}))(t)
	_, err = d.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: raw.GetId(), RequiredBytes: 2 * testExtent})
	wantCode(t, err, codes.ResourceExhausted, names.ReasonNoSpace)
	d.delete(first.GetId())
	waittest.Until(t, "there is space for another volume", func() bool { return d.available() == testTotal-1 })
	d.create(request("pvc-3", 1))
	d.checkModel()
}

func TestAGroupThatAppearsLaterAndIsNoPersistentMemoryOffersNothing(t *testing.T) {
	m := newMachine(t)
	m.config = "- {name: memory, volumeGroup: memory, medium: pmem, optional: true}\n- {name: local, default: true, volumeGroup: carve}\n"
	d := m.start(t)
	m.fake.AddGroup("memory", testExtent, testTotal)
	memory := func() *lvmdv1.DeviceClass {
		for _, c := range d.state().GetClasses() {
			if c.GetName() == "memory" {
				return c
			}
		}
		return nil // not offered
	}
	waittest.Until(t, "the class says what is wrong", func() bool {
		c := memory()
		return len(c.GetConditions()) == 1 && c.GetConditions()[0].GetType() == "VolumeGroupUnfit"
	}, func() any { return memory() })
	if got := memory().GetAvailableBytes(); got != 0 {
		t.Errorf("%d bytes are offered", got)
	}
	r := fsRequest("pvc-1", 1, "ext4")
	r.DeviceClass = "memory"
	_, err := d.client.CreateVolume(t.Context(), r)
	wantCode(t, err, codes.ResourceExhausted, names.ReasonNoSpace)
	m.fake.SetDAX("memory", true)
	m.fake.SetDataOffset("memory", 2<<20)
	m.fake.SetMostVolumes("memory", 0) // any change makes lvmd look at the group
	waittest.Until(t, "it is offered once it is persistent memory", func() bool {
		c := memory()
		return len(c.GetConditions()) == 0 && c.GetAvailableBytes() == testTotal*testExtent
	}, func() any { return memory() })
}

// Until the group appears, lvmd is ready and does not offer an optional class.
func TestAMissingGroupIsAConditionUntilItAppears(t *testing.T) {
	m := newMachine(t)
	m.config = "- {name: local, default: true, volumeGroup: nowhere}\n- {name: later, volumeGroup: nowhere, optional: true}\n"
	events := make(chan struct{}, 1)
	d := m.start(t, func(_ *daemon, o *Options) { o.BlockEvents = events })
	must.Succeed(t, d.Ready(t.Context()))
	classes := d.state().GetClasses()
	if len(classes) != 1 || classes[0].GetName() != "local" || classes[0].GetAvailableBytes() != 0 ||
		len(classes[0].GetConditions()) != 1 || classes[0].GetConditions()[0].GetType() != "VolumeGroupMissing" {
		t.Errorf("classes: want local alone, without space and with VolumeGroupMissing, got %v", classes)
	}
	_, err := d.client.CreateVolume(t.Context(), request("early", 1))
	wantCode(t, err, codes.Unavailable, names.ReasonDeviceMissing)
	m.fake.AddGroup("nowhere", testExtent, 4)
	events <- struct{}{}
	waittest.Until(t, "both classes are offered", func() bool {
		now := d.state().GetClasses()
		return len(now) == 2 && now[0].GetAvailableBytes() == 4*testExtent && len(now[0].GetConditions()) == 0
	})
	d.create(request("in-time", 1))
}

func TestAGroupThatWasThereBeforeAndIsNotFoundAtTheStartStopsNoOther(t *testing.T) {
	m := newMachine(t)
	m.fake.AddGroup("other", testExtent, 4)
	m.config = "- {name: local, default: true, volumeGroup: carve}\n- {name: other, volumeGroup: other}\n"
	d := m.start(t)
	inOther := request("pvc-other", 2)
	inOther.DeviceClass = "other"
	v := d.create(inOther)
	d.stop()
	m.fake.Deactivate()
	m.fake.PlugGroup("other", false)

	events := make(chan struct{}, 1)
	d = m.start(t, func(_ *daemon, o *Options) { o.BlockEvents = events })
	other := func() *lvmdv1.DeviceClass { return d.state().GetClasses()[1] }
	if c := other(); c.GetAvailableBytes() != 0 || len(c.GetConditions()) != 1 || c.GetConditions()[0].GetType() != "VolumeGroupMissing" {
		t.Errorf("the class is %v, want no free space and VolumeGroupMissing", c)
	}
	if got := d.list(); len(got) != 1 || got[0].GetId() != v.GetId() || len(got[0].GetConditions()) != 1 || got[0].GetConditions()[0].GetType() != "VolumeGroupMissing" {
		t.Errorf("volumes %v, want %s with VolumeGroupMissing", got, v.GetId())
	}
	d.delete(d.create(request("pvc-local", 1)).GetId())

	m.fake.PlugGroup("other", true)
	events <- struct{}{}
	waittest.Until(t, "the class and its volume are well, and the volume has a device", func() bool {
		got := d.list()
		return len(other().GetConditions()) == 0 && len(got) == 1 && len(got[0].GetConditions()) == 0 && got[0].GetDevicePath() != ""
	})
	d.delete(v.GetId())
	d.checkClean()
}

// lateDisk reads nothing of a group that no scan has found, as LVM does. Once armed, it calls a
// function after the next scan that misses the group.
type lateDisk struct {
	lvm.Groups
	group        string
	missed       func()
	found, armed atomic.Bool
}

func (l *lateDisk) Scan(ctx context.Context, names []string) ([]lvm.Group, error) {
	found, err := l.Groups.Scan(ctx, names)
	if slices.ContainsFunc(found, func(g lvm.Group) bool { return g.Name == l.group }) {
		l.found.Store(true)
	} else if slices.Contains(names, l.group) && l.armed.CompareAndSwap(true, false) {
		l.missed()
	}
	return found, err
}

func (l *lateDisk) Metadata(group string) (ondisk.Metadata, error) {
	if group == l.group && !l.found.Load() {
		return ondisk.Metadata{}, lvm.ErrNotFound
	}
	return l.Groups.Metadata(group)
}

// The disk comes after a scan missed it, and its event before lvmd applies that scan.
func TestADiskThatComesDuringAScanIsSeen(t *testing.T) {
	m := newMachine(t)
	m.fake.AddGroup("other", testExtent, 4)
	m.config = "- {name: local, default: true, volumeGroup: carve}\n- {name: other, volumeGroup: other}\n"
	m.fake.PlugGroup("other", false)
	late := &lateDisk{group: "other"}
	d := m.start(t, func(_ *daemon, o *Options) { late.Groups, o.LVM = o.LVM, late })
	late.missed = func() {
		m.fake.PlugGroup("other", true)
		d.inventory.Recheck()
	}
	late.armed.Store(true)
	d.inventory.Recheck()
	waittest.Until(t, "the class is offered", func() bool { return d.state().GetClasses()[1].GetAvailableBytes() == 4*testExtent })
}

func TestAFullMetadataAreaLeavesNoSpace(t *testing.T) {
	m := newMachine(t)
	m.fake.SetMetadataLimit(testGroup, 24<<10)
	d := m.start(t)
	most := d.state().GetClasses()[0].GetGroups()[0].GetMostVolumes()
	var ids []string
	for {
		c := d.state().GetClasses()[0]
		resp, err := d.client.CreateVolume(t.Context(), request(fmt.Sprintf("pvc-%d", len(ids)), 1))
		if free := c.GetAvailableBytes() > 0; free && err != nil {
			t.Fatalf("after %d volumes: space for %d, but %v", len(ids), c.GetAvailableBytes(), err)
		}
		if err != nil {
			wantCode(t, err, codes.ResourceExhausted, names.ReasonNoSpace)
			if len(c.GetConditions()) != 1 || c.GetConditions()[0].GetType() != "MetadataFull" || c.GetMaximumVolumeSizeBytes() != 0 {
				t.Errorf("class %v", c)
			}
			break
		}
		ids = append(ids, resp.GetVolume().GetId())
	}
	if len(ids) < 10 || len(ids) == int(testTotal) {
		t.Fatalf("%d volumes", len(ids))
	}
	if full := d.state().GetClasses()[0].GetGroups()[0].GetMostVolumes(); full != most || full < int64(len(ids)) || full > 6*int64(len(ids)) {
		t.Errorf("a group with %d volumes that is full says that it could hold %d at most, an empty one %d", len(ids), full, most)
	}
	d.checkModel()
	for _, id := range ids {
		d.delete(id)
	}
	waittest.Until(t, "all is free", func() bool { return d.available() == testTotal })
}

func TestAPMEMClassNeedsDevicesThatCanBeMapped(t *testing.T) {
	m := newMachine(t)
	m.config = "- {name: local, default: true, volumeGroup: carve, medium: pmem}\n"
	unfit := func(class, want string) {
		t.Helper()
		d := m.start(t)
		defer d.stop()
		c := d.classNamed(class)
		if len(c.GetConditions()) != 1 || c.GetConditions()[0].GetType() != conditions.VolumeGroupUnfit ||
			!strings.Contains(c.GetConditions()[0].GetMessage(), `.medium: "pmem": `) || !strings.Contains(c.GetConditions()[0].GetMessage(), want) {
			t.Errorf("class %v, want %s", c, want)
		}
	}
	unfit("local", "queue/dax")
	m.fake.SetDAX(testGroup, true)
	unfit("local", "the data begins at byte 1048576")
	m.fake.SetDataOffset(testGroup, 2<<20)
	d := m.start(t)
	if v := d.create(fsRequest("pvc-1", 8, "")); !v.GetDax() || !m.formatted[v.GetDevicePath()].DAX {
		t.Errorf("volume %v", v)
	}
	m.fake.AddGroup("odd", 3<<20, 8)
	m.fake.SetDAX("odd", true)
	m.config += "- {name: other, volumeGroup: odd, medium: pmem}\n"
	d.stop()
	unfit("other", "extents of 3Mi")
}
