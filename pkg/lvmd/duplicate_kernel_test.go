//go:build kernel

package lvmd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// copied covers the metadata and the first volumes of a disk.
const copied = "count=64"

func copyDisk(t *testing.T, from, to string) {
	t.Helper()
	byHand(t, "dd", "if="+from, "of="+to, "bs=1M", copied, "conv=fsync,notrunc")
}

func wipeHead(t *testing.T, device string) {
	t.Helper()
	byHand(t, "dd", "if=/dev/zero", "of="+device, "bs=1M", "count=1", "conv=fsync")
}

// numberOn works even if LVM warns of a copy.
func (n *node) numberOn(device string) string {
	n.t.Helper()
	fields := strings.Fields(n.seqnoOn(device))
	return fields[len(fields)-1]
}

func (p *process) hasOne(kind string, named ...string) bool {
	p.t.Helper()
	c := p.classNamed("local")
	if len(c.GetConditions()) != 1 || c.GetConditions()[0].GetType() != kind || c.GetAvailableBytes() != 0 {
		return false
	}
	message := c.GetConditions()[0].GetMessage()
	for _, disk := range []string{"/dev/vdb", "/dev/vdc"} {
		if label, err := ondisk.ReadLabel(disk); err == nil && strings.Contains(message, label.UUID) {
			p.t.Errorf("a condition has the UUID of a physical volume: %s", message)
		}
	}
	for _, name := range named {
		if !strings.Contains(message, name) {
			return false
		}
	}
	return true
}

func TestADiskAndItsCopyAreNotUsedUntilOneIsGone(t *testing.T) {
	n := newNode(t)
	p := n.start()
	v := p.create(create("pvc-kept", 8<<20, ""))
	fill(t, v, 0x5a)
	free, seqno := p.available(), n.numberOn("/dev/vdb")
	takeAway(t, func() { wipeHead(t, "/dev/vdc") })
	copyDisk(t, "/dev/vdb", "/dev/vdc")
	sendChange(t, "/dev/vdc")
	deleted := false
	check := func(when string) {
		t.Helper()
		waittest.Until(t, when+": the group is not used", func() bool { return p.hasOne("DuplicateDevice", "/dev/vdb", "/dev/vdc") })
		if _, err := p.client.CreateVolume(t.Context(), create("pvc-more", 8<<20, "")); err == nil {
			t.Errorf("%s: a volume was made", when)
		}
		if p.has(v.GetId()) == deleted {
			t.Errorf("%s: the volumes are %v; deleted: %v", when, p.state().GetVolumes(), deleted)
		}
		for _, device := range []string{"/dev/vdb", "/dev/vdc"} {
			if now := n.numberOn(device); now != seqno {
				t.Errorf("%s: the group on %s has the sequence number %s, want %s", when, device, now, seqno)
			}
		}
	}
	check("while lvmd runs")
	fill(t, v, 0xa5)
	p.kill()
	p = n.start()
	check("after a restart")
	checkFilled(t, v, 0xa5, 8<<20)
	p.delete(v.GetId())
	deleted = true
	check("after a deletion")
	wipeHead(t, "/dev/vdc")
	sendChange(t, "/dev/vdc")
	waittest.Until(t, "the group is used again, and the volume is removed", func() bool {
		c := p.classNamed("local")
		return len(c.GetConditions()) == 0 && c.GetAvailableBytes() == free+8<<20 && len(n.leftovers()) == 0
	})
	p.kill()
}

// When the machine starts, a copy of the node's disk from before the volume's creation replaces
// the disk.
func TestACopyFromBeforeIsNotServed(t *testing.T) {
	n := newNode(t)
	p := n.start()
	v := p.create(create("pvc-old", 8<<20, ""))
	fill(t, v, 0x5a)
	p.kill()
	old, own := filepath.Join(n.dir, "old"), filepath.Join(n.dir, "own")
	copyDisk(t, "/dev/vdb", old)
	p = n.start()
	w := p.create(create("pvc-new", 8<<20, ""))
	fill(t, v, 0xa5)
	fill(t, w, 0xa5)
	free := p.available()
	p.kill()
	byHand(t, "lvm", "vgchange", "--config", only("/dev/vdb"), "--activate", "n", n.group)
	takeAway(t, func() { wipeHead(t, "/dev/vdc") })
	copyDisk(t, old, "/dev/vdc")
	before := n.numberOn("/dev/vdc")
	check := func(when string) {
		t.Helper()
		if _, err := p.client.CreateVolume(t.Context(), create("pvc-more", 8<<20, "")); err == nil {
			t.Errorf("%s: a volume was made", when)
		}
		if !p.has(v.GetId()) || !p.has(w.GetId()) {
			t.Errorf("%s: the volumes are %v, want both", when, p.state().GetVolumes())
		}
		if _, err := os.Stat(v.GetDevicePath()); err == nil {
			t.Errorf("%s: a volume was activated", when)
		}
		if now := n.numberOn("/dev/vdc"); now != before {
			t.Errorf("%s: the copy has the sequence number %s, want %s", when, now, before)
		}
	}
	p = n.start()
	if !p.hasOne("DuplicateDevice", "/dev/vdb", "/dev/vdc") {
		t.Errorf("the class is %v, want a condition with both disks", p.classNamed("local"))
	}
	check("beside the disk")
	copyDisk(t, "/dev/vdb", own)
	wipeHead(t, "/dev/vdb")
	away := true
	restore := func() {
		if away {
			byHand(t, "dd", "if="+own, "of=/dev/vdb", "bs=1M", "count=1", "conv=fsync")
		}
		away = false
	}
	takeAway(t, restore)
	waittest.Until(t, "the copy is not used", func() bool { return p.hasOne("VolumeGroupOutdated", "sequence number "+before) })
	check("in place of the disk")
	p.kill()
	p = n.start()
	if !p.hasOne("VolumeGroupOutdated", "sequence number "+before) {
		t.Errorf("after a restart the class is %v, want a condition with the sequence number %s", p.classNamed("local"), before)
	}
	check("in place of the disk, after a restart")
	wipeHead(t, "/dev/vdc")
	restore()
	waittest.Until(t, "the group is used again", func() bool {
		c := p.classNamed("local")
		return c.GetAvailableBytes() == free && len(c.GetConditions()) == 0 && p.conditions() == ""
	})
	checkFilled(t, v, 0xa5, 8<<20)
	checkFilled(t, w, 0xa5, 8<<20)
	p.delete(v.GetId())
	p.delete(w.GetId())
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 })
	p.kill()
}

func TestAnEmptyNodeTakesAnotherGroupAtAStartOnly(t *testing.T) {
	n := newNode(t)
	ours := n.uuidOn("/dev/vdb")
	p := n.start()
	free := p.available()
	hidden := false
	hide := func() {
		byHand(t, "lvm", "vgrename", "--config", only("/dev/vdb"), ours, "hidden")
		hidden = true
	}
	show := func() {
		if hidden {
			byHand(t, "lvm", "vgrename", "--config", only("/dev/vdb"), "hidden", n.group)
		}
		hidden = false
	}
	takeAway(t, show)
	hide()
	theirs, away := n.foreignGroup("/dev/vdc")
	seqno := n.seqnoOn("/dev/vdc")
	sendChange(t, "/dev/vdc")
	waittest.Until(t, "the other group is refused", func() bool { return p.hasOne("VolumeGroupReplaced", ours, theirs) })
	show()
	waittest.Until(t, "the group is used again", func() bool {
		c := p.classNamed("local")
		return c.GetVgUuid() == ours && c.GetAvailableBytes() == free && len(c.GetConditions()) == 0
	})
	if now := n.seqnoOn("/dev/vdc"); now != seqno {
		t.Errorf("the other group was changed: sequence number %s, was %s", now, seqno)
	}
	p.kill()
	hide()
	p = n.start()
	c := p.classNamed("local")
	if c.GetVgUuid() != theirs || len(c.GetConditions()) != 1 || c.GetConditions()[0].GetType() != "VolumeGroupChanged" || !strings.Contains(c.GetConditions()[0].GetMessage(), ours) {
		t.Errorf("after a start the class is %v, want the group %s and a condition that says so", c, theirs)
	}
	p.kill()
	away()
}

// At a start, the group's disk is blank, and another disk could replace it.
func TestAGroupThatLvmdMadeIsNotMadeAgainWhileItHasVolumes(t *testing.T) {
	n := bareNode(t, "{name: carve, devices: [{path: '/dev/vd[bc]'}]}", "/dev/vdb", "/dev/vdc")
	blank := n.config
	n.config = strings.Replace(blank, "[bc]", "b", 1)
	p := n.start()
	v := p.create(create("pvc-kept", 8<<20, ""))
	uuid := p.classNamed("local").GetVgUuid()
	p.kill()
	byHand(t, "lvm", "vgchange", "--config", only("/dev/vdb"), "--activate", "n", n.group)
	wipeHead(t, "/dev/vdb")
	n.config = blank
	p = n.start()
	give := filepath.Join(n.dir, "state", "replace-volume-group-"+uuid)
	if !p.hasOne("VolumeGroupMissing", "touch "+give) || !p.has(v.GetId()) {
		t.Errorf("the class is %v, and the volumes are %v, want %s and a condition with %s", p.classNamed("local"), p.state().GetVolumes(), v.GetId(), give)
	}
	must.Succeed(t, os.WriteFile(give, nil, 0o600))
	sendChange(t, "/dev/vdc")
	waittest.Until(t, "a new group is made", func() bool {
		c := p.classNamed("local")
		return c.GetVgUuid() != "" && c.GetVgUuid() != uuid && c.GetAvailableBytes() > 0 && len(p.state().GetVolumes()) == 0
	})
	p.kill()
}

func TestAnOldBackupOfTheMetadataWaitsToBeAccepted(t *testing.T) {
	n := newNode(t)
	p := n.start()
	v := p.create(create("pvc-old", 8<<20, ""))
	fill(t, v, 0x5a)
	backup := filepath.Join(n.dir, "backup")
	lvmByHand(t, "vgcfgbackup", "--file", backup, n.group)
	free := p.available()
	for _, name := range []string{"pvc-1", "pvc-2", "pvc-3"} {
		p.create(create(name, 8<<20, ""))
	}
	p.kill()
	byHand(t, "lvm", "vgchange", "--config", only("/dev/vdb"), "--activate", "n", n.group)
	known := n.numberOn("/dev/vdb")
	lvmByHand(t, "vgcfgrestore", "--yes", "--file", backup, n.group)
	t.Logf("the sequence number was %s, and is %s after vgcfgrestore", known, n.numberOn("/dev/vdb"))
	p = n.start()
	if !p.hasOne("VolumeGroupOutdated", "accept-volume-group-"+n.uuidOn("/dev/vdb")) {
		t.Errorf("the class is %v, want a condition with the file that accepts it", p.classNamed("local"))
	}
	if got := len(p.state().GetVolumes()); got != 4 {
		t.Errorf("there are %d volumes, want 4", got)
	}
	must.Succeed(t, os.WriteFile(filepath.Join(n.dir, "state", "accept-volume-group-"+n.uuidOn("/dev/vdb")), nil, 0o600))
	accepted := func(when string) {
		t.Helper()
		waittest.Until(t, when+": the group is used as it is", func() bool {
			c := p.classNamed("local")
			return c.GetAvailableBytes() == free && len(c.GetConditions()) == 0 && len(p.state().GetVolumes()) == 1 && p.conditions() == ""
		})
	}
	accepted("accepted")
	checkFilled(t, v, 0x5a, 8<<20)
	p.kill()
	p = n.start()
	accepted("after a restart")
	p.delete(v.GetId())
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 })
	p.kill()
}
