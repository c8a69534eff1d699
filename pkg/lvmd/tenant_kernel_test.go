//go:build kernel

package lvmd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// asKubelet attaches a loop device to a raw volume as the kubelet does: by a node that lvmd, in
// another mount namespace, cannot see.
func asKubelet(t *testing.T, v *lvmdv1.Volume) (loop string) {
	t.Helper()
	const node = "/dev/carve-kubelet"
	must.Succeed(t, blockdev.MakeNode(node, must.Get(blockdev.NumberOf(v.GetDevicePath()))(t)))
	t.Cleanup(func() { must.Succeed(t, blockdev.RemoveNode(node)) })
	loop = strings.TrimSpace(byHand(t, "losetup", "--find", "--show", node))
	takeAway(t, func() { byHand(t, "losetup", "--detach", loop) })
	must.Succeed(t, blockdev.RemoveNode(node))
	return loop
}

// forge writes a group with the node's group name and UUID, and a higher sequence number.
func (n *node) forge(device, uuid string) {
	n.t.Helper()
	const draft = "draft"
	alone, file := only(device), filepath.Join(n.dir, "forged")
	byHand(n.t, "lvm", "vgcreate", "--config", alone, "--yes", draft, device)
	byHand(n.t, "lvm", "vgcfgbackup", "--config", alone, "--file", file, draft)
	byHand(n.t, "lvm", "vgremove", "--config", alone, "--yes", draft)
	text := string(must.Get(os.ReadFile(file))(n.t))
	at := strings.Index(text, draft+" {")
	body := strings.Replace(text[at:], draft+" {", n.group+" {", 1)
	id := regexp.MustCompile(`id = "[^"]+"`).FindString(body)
	body = strings.Replace(body, id, `id = "`+uuid+`"`, 1)
	body = regexp.MustCompile(`seqno = \d+`).ReplaceAllString(body, "seqno = 1000000")
	must.Succeed(n.t, os.WriteFile(file, []byte(text[:at]+body), 0o600))
	byHand(n.t, "lvm", "vgcfgrestore", "--config", alone, "--yes", "--file", file, n.group)
	if got := n.seqnoOn(device); n.uuidOn(device) != uuid || len(got) < len("1000000") {
		n.t.Fatalf("the forged group has the UUID %s and the sequence number %s", n.uuidOn(device), got)
	}
}

func TestTheGroupsUUIDOnADiskThatIsNotTheNodesIsRefused(t *testing.T) {
	n := newNode(t)
	p := n.start()
	uuid := n.uuidOn("/dev/vdb")
	v := p.create(create("pvc-kept", 8<<20, ""))
	fill(t, v, 0x5a)
	free := p.available()
	p.kill()
	n.forge("/dev/vdc", uuid)
	forged, kept := n.seqnoOn("/dev/vdc"), n.seqnoOn("/dev/vdb")
	wipe := func() { byHand(t, "dd", "if=/dev/zero", "of=/dev/vdc", "bs=1M", "count=1", "conv=fsync") }
	takeAway(t, wipe)
	p = n.start()
	c := p.classNamed("local")
	if len(c.GetConditions()) != 1 || c.GetConditions()[0].GetType() != "VolumeGroupReplaced" || !strings.Contains(c.GetConditions()[0].GetMessage(), "/dev/vdc") || c.GetAvailableBytes() != 0 {
		t.Errorf("the class is %v, want no space and a condition with /dev/vdc", c)
	}
	if _, err := p.client.CreateVolume(t.Context(), create("pvc-more", 8<<20, "")); err == nil {
		t.Error("a volume was made in the forged group")
	}
	if !p.has(v.GetId()) {
		t.Errorf("the volumes are %v, want %s", p.state().GetVolumes(), v.GetId())
	}
	if now := n.seqnoOn("/dev/vdc"); now != forged {
		t.Errorf("the forged group was changed: sequence number %s, was %s", now, forged)
	}
	if now := n.seqnoOn("/dev/vdb"); now != kept {
		t.Errorf("the node's group was changed: sequence number %s, was %s", now, kept)
	}
	wipe()
	waittest.Until(t, "the group is used again", func() bool {
		c := p.classNamed("local")
		return c.GetAvailableBytes() == free && len(c.GetConditions()) == 0
	})
	checkFilled(t, v, 0x5a, 8<<20)
	p.delete(v.GetId())
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 })
	p.kill()
}

// A disk of another holds the group's complete metadata with a higher sequence number and the
// volume moved to that disk. Its writer knows the UUID of the node's physical volume.
func TestAForgedGroupThatListsTheNodesDiskIsRefused(t *testing.T) {
	n := newNode(t)
	p := n.start()
	v := p.create(create("pvc-kept", 8<<20, ""))
	fill(t, v, 0x5a)
	free := p.available()
	n.waitUntagged()
	must.Succeed(t, p.stop())
	lvmByHand(t, "vgchange", "--activate", "n", n.group)
	known := must.Get(ondisk.ReadText("/dev/vdb", n.group, ""))(t)
	takeAway(t, func() { wipeHead(t, "/dev/vdc") })
	lvmByHand(t, "pvcreate", "--yes", "/dev/vdc")
	label := must.Get(ondisk.ReadLabel("/dev/vdc"))(t)
	byHand(t, "lvm", "vgcreate", "--config", only("/dev/vdc"), "--yes", "draft", "/dev/vdc")
	rewrite(t, "/dev/vdc", func(string) string {
		text := regexp.MustCompile(`seqno = \d+`).ReplaceAllString(string(known.Text), "seqno = 1000000")
		text = strings.ReplaceAll(text, `"pv0", `, `"pv1", `)
		own := regexp.MustCompile(`(?s)pv0 \{.*?\n\}\n`).FindString(text)
		forged := strings.Replace(own, "pv0 {", "pv1 {", 1)
		forged = regexp.MustCompile(`id = "[^"]+"`).ReplaceAllString(forged, `id = "`+label.UUID+`"`)
		return strings.Replace(text, own, own+strings.ReplaceAll(forged, "/dev/vdb", "/dev/vdc"), 1)
	})
	if on := lvmByHand(t, "lvs", "--noheadings", "-o", "devices", n.group+"/"+v.GetId()); !strings.Contains(on, "/dev/vdc") {
		t.Fatalf("LVM has the volume on %s, want /dev/vdc", on)
	}
	before := n.seqnoOn("/dev/vdb")
	p = n.start()
	if !p.hasOne("VolumeGroupReplaced", "/dev/vdb and /dev/vdc") || !p.has(v.GetId()) {
		t.Errorf("the class is %v, and the volumes are %v, want a condition, and the volume", p.classNamed("local"), p.state().GetVolumes())
	}
	if _, err := p.client.CreateVolume(t.Context(), create("pvc-more", 8<<20, "")); err == nil {
		t.Error("a volume was made in the forged group")
	}
	if _, err := os.Stat(v.GetDevicePath()); err == nil {
		t.Error("the volume was activated on the forged disk")
	}
	if now := n.seqnoOn("/dev/vdb"); now != before {
		t.Errorf("the node's disk has the sequence number %s, was %s", now, before)
	}
	wipeHead(t, "/dev/vdc")
	waittest.Until(t, "the group is used again", func() bool {
		c := p.classNamed("local")
		return c.GetAvailableBytes() == free && len(c.GetConditions()) == 0 && slices.Contains(n.active(), v.GetId())
	})
	checkFilled(t, v, 0x5a, 8<<20)
	p.delete(v.GetId())
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 })
	p.kill()
}

func TestTheDisksOfTheGroupMayBeReplacedOneAfterTheOther(t *testing.T) {
	n := newNode(t)
	p := n.start()
	v := p.create(create("pvc-kept", 8<<20, ""))
	fill(t, v, 0x5a)
	free := p.available()
	lvmByHand(t, "vgextend", "--yes", n.group, "/dev/vdc")
	waittest.Until(t, "the disk is added", func() bool { return p.available() > free })
	lvmByHand(t, "pvmove", "--yes", "/dev/vdb")
	lvmByHand(t, "vgreduce", n.group, "/dev/vdb")
	waittest.Until(t, "the first disk is gone", func() bool { return p.available() == free })
	p.kill()
	p = n.start()
	if c := p.classNamed("local"); len(c.GetConditions()) != 0 || c.GetAvailableBytes() != free || p.conditions() != "" {
		t.Errorf("after a restart the class is %v, and the volumes' conditions are %s", c, p.conditions())
	}
	checkFilled(t, v, 0x5a, 8<<20)
	lvmByHand(t, "vgextend", "--yes", n.group, "/dev/vdb")
	waittest.Until(t, "the disk is added again", func() bool { return p.available() > free })
	lvmByHand(t, "pvmove", "--yes", "/dev/vdc")
	lvmByHand(t, "vgreduce", n.group, "/dev/vdc")
	lvmByHand(t, "pvremove", "--yes", "/dev/vdc")
	waittest.Until(t, "all is as it was", func() bool { return p.available() == free })
	p.delete(v.GetId())
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 })
	p.kill()
}

func TestWhatATenantWritesIntoARawVolumeIsNeverTheNodesGroup(t *testing.T) {
	n := newNode(t)
	p := n.start()
	uuid := n.uuidOn("/dev/vdb")
	victim := p.create(create("pvc-victim", 8<<20, ""))
	fill(t, victim, 0x5a)
	raw := p.create(create("pvc-raw", 64<<20, ""))
	loop := asKubelet(t, raw)
	n.forge(loop, uuid)
	forged, free := n.seqnoOn(loop), p.available()
	// check makes lvmd scan. udev decides whether lvmd sees the tenant's data before it looks at
	// all devices.
	check := func(when string, restarted bool) {
		t.Helper()
		scanned := n.seqnoOn("/dev/vdb")
		w := p.create(create("pvc-next", 8<<20, ""))
		if on := byHand(t, "lvm", "lvs", "--config", only("/dev/vdb"), "--noheadings", "-o", "devices", n.group+"/"+w.GetId()); !strings.Contains(on, "/dev/vdb(") {
			t.Errorf("%s: a new volume lies on %s", when, on)
		}
		p.delete(w.GetId())
		waittest.Until(t, "the new volume is removed", func() bool { return p.available() == free })
		if now := n.seqnoOn("/dev/vdb"); now == scanned {
			t.Errorf("%s: the group has the sequence number %s, as before", when, now)
		}
		c := p.classNamed("local")
		named := strings.Contains(fmt.Sprint(c.GetConditions()), loop+": its contents are a user's: it lies on the logical volume carve-"+raw.GetId()+";")
		others := slices.DeleteFunc(slices.Clone(c.GetConditions()), func(c *lvmdv1.Condition) bool { return c.GetType() == conditions.VolumeGroupImitated })
		if restarted && !named {
			t.Errorf("%s: no condition names %s and its volume: %v", when, loop, c)
		}
		if c.GetVgUuid() != uuid || len(others) != 0 || !p.has(victim.GetId()) || !p.has(raw.GetId()) || p.conditions() != "" {
			t.Errorf("%s: the class is %v, and the volumes are %v", when, c, p.state().GetVolumes())
		}
		if log := p.log.String(); strings.Contains(log, "volume is gone") {
			t.Errorf("%s: lvmd takes volumes for gone:\n%s", when, log)
		}
		if got := n.seqnoOn(loop); got != forged {
			t.Errorf("%s: what the tenant wrote has the sequence number %s, want %s", when, got, forged)
		}
		checkFilled(t, victim, 0x5a, 8<<20)
	}
	check("while lvmd runs", false)
	p.kill()
	p = n.start()
	check("after a restart", true)
	if log := p.log.String(); !strings.Contains(log, loop) {
		t.Errorf("lvmd does not say that it looks at no %s:\n%s", loop, log)
	}
	p.kill()
	// An administrator's list must not make lvmd look at it.
	classes := n.config
	n.config = classes + "devices: {allow: [{path: '/dev/*'}]}\n"
	p = n.start()
	check("where all devices are allowed", true)
	p.kill()
	n.config = classes + "volumeGroups:\n- {name: carve, devices: [{path: " + loop + "}], allowSignatures: [" + loop + "]}\n"
	p = n.start()
	check("where the configuration names it", true)
	if metrics := p.log.String(); !strings.Contains(metrics, "on_volume") {
		t.Errorf("lvmd does not say why it does not use %s:\n%s", loop, metrics)
	}
	p.kill()
	overwriteAt(t, loop, 0, 0, 1<<20)
	n.config = classes
	p = n.start()
	if c := p.classNamed("local").GetConditions(); len(c) > 0 {
		t.Errorf("when it is overwritten, the class has the conditions %v", c)
	}
	p.kill()
}

func TestVolumesThatAreAllGoneFromTheMetadataComeBackWithIt(t *testing.T) {
	n := newNode(t)
	p := n.start()
	v, w := p.create(create("pvc-1", 8<<20, "")), p.create(create("pvc-2", 8<<20, ""))
	fill(t, v, 0x5a)
	free, backup := p.available(), filepath.Join(n.dir, "backup")
	lvmByHand(t, "vgcfgbackup", "--file", backup, n.group)
	lvmByHand(t, "lvremove", "--yes", n.group)
	waittest.Until(t, "the group is refused", func() bool {
		c := p.classNamed("local")
		return len(c.GetConditions()) == 1 && c.GetConditions()[0].GetType() == "VolumeGroupReplaced" && c.GetAvailableBytes() == 0
	})
	if !p.has(v.GetId()) || !p.has(w.GetId()) {
		t.Errorf("the volumes are %v, want both", p.state().GetVolumes())
	}
	lvmByHand(t, "vgcfgrestore", "--yes", "--file", backup, n.group)
	waittest.Until(t, "all is as before", func() bool {
		return p.available() == free && len(p.classNamed("local").GetConditions()) == 0 && p.conditions() == ""
	})
	checkFilled(t, v, 0x5a, 8<<20)
	p.delete(v.GetId())
	p.delete(w.GetId())
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 })
	p.kill()
}

func TestAGroupWithoutItsOnlyVolumeAndWithANewDiskIsRefused(t *testing.T) {
	n := newNode(t)
	p := n.start()
	v := p.create(create("pvc-1", 8<<20, ""))
	n.waitUntagged()
	accept := filepath.Join(n.dir, "state", "accept-volume-group-"+n.uuidOn("/dev/vdb"))
	must.Succeed(t, p.stop())
	lvmByHand(t, "lvremove", "--yes", n.group)
	lvmByHand(t, "vgextend", "--yes", n.group, "/dev/vdc")
	p = n.start()
	if !p.hasOne("VolumeGroupReplaced", v.GetId(), "its only volume", accept) || !p.has(v.GetId()) || p.available() != 0 {
		t.Errorf("the class is %v, and the volumes are %v", p.classNamed("local"), p.state().GetVolumes())
	}
	must.Succeed(t, os.WriteFile(accept, nil, 0o600))
	waittest.Until(t, "it is accepted", func() bool {
		return len(p.state().GetVolumes()) == 0 && p.available() > 0 && len(p.classNamed("local").GetConditions()) == 0
	})
	p.delete(p.create(create("pvc-1", 8<<20, "")).GetId())
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 })
	p.kill()
	lvmByHand(t, "vgreduce", n.group, "/dev/vdc")
	lvmByHand(t, "pvremove", "--yes", "/dev/vdc")
}
