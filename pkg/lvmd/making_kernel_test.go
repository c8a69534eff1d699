//go:build kernel

package lvmd_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

type makers struct {
	*node
	t *testing.T
	// all is the free space in bytes when everything is created.
	all int64
}

func newMakers(t *testing.T) *makers {
	n := bareNode(t, "{name: carve, devices: [{path: '/dev/vd[bc]'}]}", "/dev/vdb", "/dev/vdc")
	n.config = "- {name: thin, default: true, volumeGroup: carve, type: thin, thin: {pool: carve-pool, size: 64Mi}}\n" +
		n.config[len("- {name: local, default: true, volumeGroup: carve}\n"):]
	n.keeps = []string{"carve-pool"}
	m := &makers{node: n, t: t}
	p := n.start()
	m.all = p.available()
	m.check(p)
	return m
}

func (m *makers) check(p *process) {
	m.t.Helper()
	if got := m.physicalVolumes(); got != "/dev/vdb carve /dev/vdc carve" {
		m.t.Errorf("physical volumes %q", got)
	}
	if got := p.available(); got != m.all {
		m.t.Errorf("%d bytes are available, want %d", got, m.all)
	}
	v := p.create(create("pvc-1", 8<<20, ""))
	Map(m.t, v)
	p.delete(v.GetId())
	waittest.Until(m.t, "the volume is gone", func() bool { return p.available() == m.all })
	p.kill()
	if left := m.leftovers(); len(left) > 0 {
		m.t.Errorf("left: %v", left)
	}
	lvmByHand(m.t, "vgremove", "--yes", "--force", "--force", m.group)
	blankDisks(m.t, "/dev/vdb", "/dev/vdc")
	must.Succeed(m.t, os.RemoveAll(filepath.Join(m.dir, "state")))
}

func TestLVMKilledWhileAGroupIsMade(t *testing.T) {
	m := newMakers(t)
	m.standIn()
	if !soaking {
		for _, c := range []struct {
			command string
			at      killPoint
		}{
			{"vgcreate", killPoint{3, "lvm", false}},
			{"lvcreate", killPoint{12, "lvmd", true}}, // of the thin pool
		} {
			m.lasting = c.at.lasting
			c.at.mustHit(t, m.killCommand(c.command, c.at))
		}
		return
	}
	// These act before the group exists, and never run in a lasting lvm.
	for command, least := range map[string]int{"pvcreate": 2, "vgcreate": 2, "vgextend": 2} {
		for _, whom := range []string{"lvm", "lvmd"} {
			eachNumber(t, least, func(number int) bool { return m.killCommand(command, killPoint{number, whom, false}) })
		}
	}
	killAtEachEffect(t, 12, func(lasting bool) func(killPoint) bool {
		m.lasting = lasting
		return func(at killPoint) bool { return m.killCommand("lvcreate", at) }
	})
}

// killCommand returns false when the command had fewer effects.
func (m *makers) killCommand(command string, at killPoint) (killed bool) {
	m.t.Helper()
	m.t.Logf("%s: %v", command, at)
	m.prepareKill(command, at)
	first := m.command()
	log := &output{}
	first.Stdout, first.Stderr = log, log
	must.Succeed(m.t, first.Start())
	exited := make(chan struct{})
	go func() {
		_ = first.Wait()
		close(exited)
	}()
	killed = m.killed(at)
	// lvmd continues as far as it can, and may have to give up.
	select {
	case <-exited:
	case <-time.After(time.Second):
	}
	_ = first.Process.Kill()
	<-exited
	m.check(m.start())
	if m.t.Failed() {
		m.t.Logf("the log of the first lvmd:\n%s", log)
	}
	return killed
}

func TestLVMKilledWhileADiskGrows(t *testing.T) {
	device, file := loopDisk(t, 64<<20)
	n := bareNode(t, "{name: carve, devices: [{path: "+device+"}]}")
	n.standIn()
	p := n.start()
	const more = 32 << 20
	size, free := int64(64<<20), p.available()
	// pvresize never runs in a lasting lvm. grow returns false when it had fewer effects.
	grow := func(at killPoint) (killed bool) {
		t.Logf("pvresize: %v", at)
		size, free = size+more, free+more
		n.prepareKill("pvresize", at)
		must.Succeed(t, os.Truncate(file, size))
		byHand(t, "losetup", "--set-capacity", device)
		if killed = n.killed(at); killed && at.whom == "lvmd" {
			waittest.Until(t, "lvmd has ended", func() bool { return p.hasEnded(time.Millisecond) })
			p = n.start()
		}
		waittest.Until(t, "the enlarged disk is used to its end", func() bool { return p.available() == free })
		v := p.create(create("pvc-1", free, ""))
		Map(t, v)
		p.delete(v.GetId())
		waittest.Until(t, "the volume is gone", func() bool { return p.available() == free })
		return killed
	}
	if !soaking {
		at := killPoint{2, "lvmd", false}
		at.mustHit(t, grow(at))
		return
	}
	for _, whom := range []string{"lvm", "lvmd"} {
		eachNumber(t, 2, func(number int) bool { return grow(killPoint{number, whom, false}) })
	}
}

func TestLvmdKilledWhileAGroupIsMade(t *testing.T) {
	m := newMakers(t)
	m.eachPlace(t, 1, append(slices.Repeat(journalPlaces, 6), "pool: made"), func(_ int, p *process) string {
		p.kill()
		place := m.read("crashed")
		m.check(m.start())
		return place
	})
}
