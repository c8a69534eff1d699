//go:build kernel

package lvmd_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/privilege/privilegetest"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (p *process) has(id string) bool {
	p.t.Helper()
	return slices.ContainsFunc(p.state().GetVolumes(), func(v *lvmdv1.Volume) bool { return v.GetId() == id })
}

func TestLvmdAndItsLVMHaveTheCapabilitiesThatAreKept(t *testing.T) {
	n := newNode(t)
	p := n.start()
	p.create(create("pvc-1", 8<<20, ""))
	pids := []int{p.cmd.Process.Pid}
	for _, child := range strings.Fields(byHand(t, "pgrep", "--parent", strconv.Itoa(pids[0]))) {
		pid := must.Get(strconv.Atoi(child))(t)
		pids = append(pids, pid)
	}
	if len(pids) < 2 {
		t.Error("lvmd has no lvm that lasts")
	}
	for _, pid := range pids {
		if err := privilegetest.Reduced(pid, lvmd.Capabilities); err != nil {
			t.Error(err)
		}
	}
}

func TestAVolumeThatAnAdministratorRemovedIsGone(t *testing.T) {
	n := newNode(t)
	p := n.start()
	all := p.available()
	v := p.create(create("pvc-1", 8<<20, ""))
	lvmByHand(t, "lvremove", "--yes", n.group+"/"+v.GetId())
	waittest.Until(t, "it is gone and its space is back", func() bool { return !p.has(v.GetId()) && p.available() == all })
	again := p.create(create("pvc-1", 8<<20, ""))
	if again.GetId() == v.GetId() {
		t.Errorf("volume %v", again)
	}
	Map(t, again)
}

func TestAVolumeThatAnAdministratorRenamedIsGoneUntilItHasItsNameBack(t *testing.T) {
	n := newNode(t)
	p := n.start()
	all := p.available()
	v := p.create(create("pvc-1", 8<<20, ""))
	fill(t, v, 0x5a)
	lvmByHand(t, "lvrename", n.group, v.GetId(), "renamed")
	waittest.Until(t, "it is gone", func() bool { return !p.has(v.GetId()) })
	if got := p.available(); got != all-8<<20 {
		t.Errorf("%d bytes are available, and its space is taken", got)
	}
	lvmByHand(t, "lvrename", n.group, "renamed", v.GetId())
	waittest.Until(t, "it is back", func() bool { return p.has(v.GetId()) })
	if got := p.create(create("pvc-1", 8<<20, "")); got.GetId() != v.GetId() {
		t.Errorf("volume %v", got)
	}
	checkFilled(t, v, 0x5a, 8<<20)
}

// The other volumes would get the device numbers that lvmd's descriptors refer to.
func TestRenamedTombstoneIsWipedOnceItHasItsNameBack(t *testing.T) {
	n := newNode(t)
	n.config = "- {name: local, default: true, volumeGroup: carve, wipe: zero, wipeRate: 1Mi}\n"
	p := n.start()
	all := p.available()
	const size = 16 << 20
	v, other := p.create(create("deleted", size, "")), p.create(create("other", size, ""))
	fill(t, v, 0xa1)
	fill(t, other, 0xb2)
	p.delete(v.GetId())
	waittest.Until(t, "some of it is wiped", func() bool { return readHead(t, v, 1)[0] == 0 })
	lvmByHand(t, "lvrename", n.group, v.GetId(), "renamed")
	waittest.Until(t, "lvmd has closed it", func() bool { return strings.TrimSpace(mappings(t, "-o", "open", n.group+"-renamed")) == "0" })
	left := must.Get(os.ReadFile("/dev/" + n.group + "/renamed"))(t)
	if !bytes.Contains(left, []byte{0xa1}) {
		t.Error("all of it is wiped: nothing shows whether lvmd leaves it alone")
	}
	after := p.create(create("after", size, ""))
	fill(t, after, 0xc3)
	if now := must.Get(os.ReadFile("/dev/" + n.group + "/renamed"))(t); !bytes.Equal(now, left) {
		t.Error("it is wiped further although lvmd has closed it")
	}
	lvmByHand(t, "lvrename", n.group, "renamed", v.GetId())
	waittest.Until(t, "it is removed", func() bool { return p.available() == all-2*size })
	checkFilled(t, other, 0xb2, size)
	checkFilled(t, after, 0xc3, size)
	next := p.create(create("next", size, ""))
	Map(t, next)
}

func TestAGroupThatAnAdministratorRenamedIsMissingUntilItHasItsNameBack(t *testing.T) {
	n := newNode(t)
	p := n.start()
	v := p.create(create("pvc-1", 8<<20, ""))
	all := p.available()
	lvmByHand(t, "vgrename", n.group, "renamed")
	restored := false
	t.Cleanup(func() {
		if !restored {
			lvmByHand(t, "vgrename", "renamed", n.group)
		}
	})
	waittest.Until(t, "the class has no free space and a condition", func() bool {
		return p.available() == 0 && len(p.state().GetClasses()[0].GetConditions()) > 0
	})
	if _, err := p.client.CreateVolume(t.Context(), create("pvc-2", 8<<20, "")); status.Code(err) != codes.Unavailable {
		t.Errorf("a create there: %v", err)
	}
	if !p.has(v.GetId()) {
		t.Error("its volume is forgotten")
	}
	lvmByHand(t, "vgrename", "renamed", n.group)
	restored = true
	waittest.Until(t, "all is as before", func() bool { return p.available() == all && len(p.state().GetClasses()[0].GetConditions()) == 0 })
	p.delete(v.GetId())
	waittest.Until(t, "it can be deleted", func() bool { return len(n.leftovers()) == 0 })
}

func (p *process) commands() int { return strings.Count(p.log.String(), `"msg":"lvm"`) }

// readsOf counts reads of a disk: a look at the group reads the metadata past the page cache.
func readsOf(t *testing.T, disk string) int64 {
	t.Helper()
	fields := strings.Fields(string(must.Get(os.ReadFile("/sys/block/" + disk + "/stat"))(t)))
	return must.Get(strconv.ParseInt(fields[0], 10, 64))(t)
}

func TestAnIdleLvmdRunsNothing(t *testing.T) {
	n := newNode(t, "/dev/vdb", "/dev/vdc")
	n.debug = true
	n.config += "- {name: raid1, volumeGroup: carve, type: raid1}\n" +
		"- {name: thin, volumeGroup: carve, type: thin, thin: {pool: carve-pool, size: 64Mi}}\n"
	p := n.start()
	v := p.create(create("pvc-1", 8<<20, ""))
	p.create(inClass(create("pvc-mirrored", 8<<20, ""), "raid1"))
	thin := p.create(inClass(create("pvc-thin", 8<<20, ""), "thin"))
	must.Get(p.client.CreateSnapshot(t.Context(), &lvmdv1.CreateSnapshotRequest{Name: "s", SourceVolumeId: thin.GetId()}))(t)
	waittest.Until(t, "the mirror is in sync", func() bool { return p.conditions() == "" })
	n.waitUntagged()
	look := func() {
		// A look reads all metadata of one disk before it reads another disk.
		for _, disk := range []string{"vdb", "vdc"} {
			earlier := readsOf(t, disk)
			waittest.Until(t, "lvmd looks at the group", func() bool { return readsOf(t, disk) > earlier })
		}
	}
	look() // The command that untagged has ended, and is in the log.
	before := p.commands()
	if before == 0 {
		t.Fatal("the commands are not in the log")
	}
	for range 5 {
		look()
		p.state()
		volumes, err := p.client.ListVolumes(t.Context(), &lvmdv1.ListVolumesRequest{})
		if err != nil || len(volumes.GetVolumes()) != 3 {
			t.Errorf("volumes %v, error %v, want 3", volumes, err)
		}
		snapshots, err := p.client.ListSnapshots(t.Context(), &lvmdv1.ListSnapshotsRequest{})
		if err != nil || len(snapshots.GetSnapshots()) != 1 {
			t.Errorf("snapshots %v, error %v, want 1", snapshots, err)
		}
		classes, err := p.client.ListClasses(t.Context(), &lvmdv1.ListClassesRequest{})
		if err != nil || len(classes.GetClasses()) != 3 {
			t.Errorf("classes %v, error %v, want 3", classes, err)
		}
		if got := p.volume(v.GetId()); got.GetId() != v.GetId() {
			t.Errorf("volume %v, want %v", got, v)
		}
	}
	if got := p.commands() - before; got > 0 {
		t.Errorf("%d commands while lvmd looked at the group five times, want none", got)
	}
}

func TestAMegabyteOfWarningsIsNoHindrance(t *testing.T) {
	n := newNode(t)
	n.standIn()
	p := n.start()
	must.Succeed(t, os.WriteFile(filepath.Join(n.dir, "babble"), nil, 0o600))
	p.delete(p.create(create("pvc-1", 8<<20, "")).GetId())
	waittest.Until(t, "it is gone", func() bool { return len(n.leftovers()) == 0 })
	if len(p.log.String()) > 1<<18 {
		t.Errorf("lvmd's log has %d bytes", len(p.log.String()))
	}
}

// LVM suspends a volume to change its table, and lvmd may look at that moment.
func TestAVolumeThatRunsAgainIsNotCalledSuspended(t *testing.T) {
	n := newNode(t, "/dev/vdb")
	p := n.start()
	v := p.create(create("v", 8<<20, ""))
	Map(t, v)
	device := "carve-" + v.GetId()
	byHand(t, "dmsetup", "suspend", device)
	t.Cleanup(func() { byHand(t, "dmsetup", "resume", device) })
	lvmByHand(t, "vgchange", "--addtag", "looked-at", "carve") // It makes lvmd scan.
	waittest.Until(t, "the volume is suspended", func() bool { return strings.Contains(p.conditions(), "Suspended") })
	byHand(t, "dmsetup", "resume", device)
	waittest.Until(t, "the volume runs", func() bool { return p.conditions() == "" })
}
