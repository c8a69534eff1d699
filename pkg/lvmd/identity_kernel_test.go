//go:build kernel

package lvmd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// only limits LVM to one device.
func only(device string) string {
	return strings.Replace(handConfig, "devices {", `devices { global_filter=["a|^`+device+`$|","r|.*|"]`, 1)
}

// foreignGroup creates another group of the same name on a disk, and returns its UUID and a
// function that removes it.
func (n *node) foreignGroup(device string) (uuid string, away func()) {
	n.t.Helper()
	alone := only(device)
	byHand(n.t, "lvm", "vgcreate", "--config", alone, "--yes", n.group, device)
	there := true
	away = func() {
		if there {
			byHand(n.t, "lvm", "vgremove", "--config", alone, "--yes", "--force", "--force", n.group)
			byHand(n.t, "lvm", "pvremove", "--config", alone, "--yes", device)
			there = false
		}
	}
	n.t.Cleanup(away)
	return strings.TrimSpace(byHand(n.t, "lvm", "vgs", "--config", alone, "--noheadings", "-o", "vg_uuid", n.group)), away
}

func (n *node) uuidOn(device string) string {
	n.t.Helper()
	return strings.TrimSpace(byHand(n.t, "lvm", "vgs", "--config", only(device), "--noheadings", "-o", "vg_uuid", n.group))
}

func (n *node) seqnoOn(device string) string {
	n.t.Helper()
	return strings.TrimSpace(byHand(n.t, "lvm", "vgs", "--config", only(device), "--noheadings", "-o", "vg_seqno", n.group))
}

func TestAnotherGroupOfTheNameOnTheRealLVM(t *testing.T) {
	n := newNode(t)
	ours := n.uuidOn("/dev/vdb")
	p := n.start()
	v := p.create(create("pvc-kept", 8<<20, ""))
	fill(t, v, 0x5a)
	free := p.classNamed("local").GetAvailableBytes()
	p.kill()

	// LVM refuses to create a group while devices of its name exist.
	byHand(t, "lvm", "vgchange", "--config", only("/dev/vdb"), "--activate", "n", n.group)
	// While the node's group is present, lvmd ignores the other.
	theirs, away := n.foreignGroup("/dev/vdc")
	seqno := n.seqnoOn("/dev/vdc")
	p = n.start()
	if got := p.classNamed("local"); got.GetVgUuid() != ours || got.GetAvailableBytes() != free {
		t.Errorf("the class is %v, want %d bytes in %s", got, free, ours)
	}
	w := p.create(create("pvc-more", 8<<20, "ext4"))
	p.delete(w.GetId())
	waittest.Until(t, "it is removed", func() bool { return p.classNamed("local").GetAvailableBytes() == free })
	p.kill()

	// Without it, lvmd rejects the other and forgets nothing.
	byHand(t, "lvm", "vgrename", "--config", only("/dev/vdb"), ours, "hidden")
	p = n.start()
	conditions := p.classNamed("local").GetConditions()
	if len(conditions) != 1 || conditions[0].GetType() != "VolumeGroupReplaced" ||
		!strings.Contains(conditions[0].GetMessage(), ours) || !strings.Contains(conditions[0].GetMessage(), theirs) {
		t.Errorf("the class' conditions are %v, want one with %s and %s", conditions, ours, theirs)
	}
	if got := p.classNamed("local").GetAvailableBytes(); got != 0 {
		t.Errorf("%d bytes are offered", got)
	}
	byHand(t, "lvm", "vgrename", "--config", only("/dev/vdb"), "hidden", n.group)
	waittest.Until(t, "the group is used again", func() bool {
		c := p.classNamed("local")
		return c.GetAvailableBytes() == free && len(c.GetConditions()) == 0
	})
	checkFilled(t, v, 0x5a, 8<<20)
	if got := n.seqnoOn("/dev/vdc"); got != seqno {
		t.Errorf("the other group was changed: %s, was %s", got, seqno)
	}
	p.delete(v.GetId())
	waittest.Until(t, "nothing is left", func() bool {
		return strings.TrimSpace(byHand(t, "lvm", "lvs", "--config", only("/dev/vdb"), "--noheadings", n.group)) == ""
	})
	p.kill()
	away()
}

func TestGroupsOnRealDevicesThatAreNotAllowedAreNotSeen(t *testing.T) {
	n := newNode(t)
	theirs, away := n.foreignGroup("/dev/vdc")
	ours := n.uuidOn("/dev/vdb")
	// lvmd takes neither of two groups with one name, unless only one is visible.
	classes := n.config
	for _, devices := range []string{"{deny: [{path: /dev/vdc}]}", "{allow: [{path: '/dev/vd[ab]'}]}"} {
		n.config = classes + "devices: " + devices + "\n"
		p := n.start()
		c := p.classNamed("local")
		if c.GetVgUuid() != ours || len(c.GetConditions()) != 0 {
			t.Errorf("devices: %s: the class has group %s and the conditions %v, want %s, none of %s", devices, c.GetVgUuid(), c.GetConditions(), ours, theirs)
		}
		v := p.create(create("pvc-seen", 8<<20, "ext4"))
		p.delete(v.GetId())
		waittest.Until(t, "it is removed", func() bool { return len(p.state().GetVolumes()) == 0 })
		p.kill()
	}
	n.config = classes + "devices: {allow: [{path: /dev/absent}]}\n"
	p := n.start()
	if c := p.classNamed("local"); len(c.GetConditions()) != 1 || c.GetConditions()[0].GetType() != "VolumeGroupMissing" || c.GetAvailableBytes() != 0 {
		t.Errorf("no device is allowed, and the class is %v", c)
	}
	p.kill()
	away()
}

func TestOfTwoUnknownGroupsNoneIsTaken(t *testing.T) {
	n := newNode(t)
	theirs, away := n.foreignGroup("/dev/vdc")
	ours := n.uuidOn("/dev/vdb")
	p := n.start()
	conditions := p.classNamed("local").GetConditions()
	if len(conditions) != 1 || !strings.Contains(conditions[0].GetMessage(), ours) || !strings.Contains(conditions[0].GetMessage(), theirs) {
		t.Errorf("the class' conditions are %v, want one with %s and %s", conditions, ours, theirs)
	}
	must.Succeed(t, os.WriteFile(filepath.Join(n.dir, "state", "accept-volume-group-"+ours), nil, 0o600))
	waittest.Until(t, "it is used", func() bool {
		c := p.classNamed("local")
		return c.GetVgUuid() == ours && c.GetAvailableBytes() > 0 && len(c.GetConditions()) == 0
	})
	p.kill()
	away()
}
