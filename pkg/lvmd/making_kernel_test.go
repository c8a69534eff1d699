//go:build kernel

package lvmd_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// makers is a machine whose lvmd makes a volume group of two disks, and a thin
// pool in it.
type makers struct {
	*node
	t *testing.T
	// all is the room that there is when all is made.
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

// check has an lvmd that made what was yet to be made show that all is there, and
// takes it away again.
func (m *makers) check(p *process) {
	m.t.Helper()
	if got := m.physicalVolumes(); got != "/dev/vdb carve /dev/vdc carve" {
		m.t.Errorf("physical volumes %q", got)
	}
	if got := p.available(); got != m.all {
		m.t.Errorf("%d bytes are available, want %d", got, m.all)
	}
	v := p.create(create("pvc-1", 8<<20, ""))
	clean(m.t, v)
	p.delete(v.GetId())
	wait(m.t, "the volume is gone", func() bool { return p.available() == m.all })
	p.kill()
	if left := m.leftovers(); len(left) > 0 {
		m.t.Errorf("left: %v", left)
	}
	lvmByHand(m.t, "vgremove", "--yes", "--force", "--force", m.group)
	blankDisks(m.t, "/dev/vdb", "/dev/vdc")
	if err := os.RemoveAll(filepath.Join(m.dir, "state")); err != nil {
		m.t.Fatal(err)
	}
}

func TestLVMKilledWhileAGroupIsMade(t *testing.T) {
	m := newMakers(t)
	m.standIn()
	if !soaking {
		if chance(t).IntN(2) == 0 {
			m.killCommand("vgcreate", 3, "lvm")
		} else {
			m.killCommand("lvcreate", 12, "lvmd") // of the thin pool
		}
		return
	}
	for _, command := range []string{"pvcreate", "vgcreate", "vgextend", "lvcreate"} {
		for _, whom := range []string{"lvm", "lvmd"} {
			for number := 1; !m.killCommand(command, number, whom); number++ {
				if t.Failed() {
					t.FailNow()
				}
			}
		}
	}
}

// killCommand has one command killed that a starting lvmd runs. It returns true
// when the command had fewer effects.
func (m *makers) killCommand(command string, number int, whom string) (ended bool) {
	m.t.Helper()
	m.t.Logf("%s killed before effect %d, with %s", command, number, whom)
	m.ordain(command, number, whom)
	first := m.command()
	log := &output{}
	first.Stdout, first.Stderr = log, log
	if err := first.Start(); err != nil {
		m.t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		_ = first.Wait()
		close(exited)
	}()
	wait(m.t, "the command ended, or was killed", func() bool { return m.read("effects") != "" || m.read("slain") != "" })
	// It goes on as far as it can: it may have to give up.
	select {
	case <-exited:
	case <-time.After(time.Second):
	}
	_ = first.Process.Kill()
	<-exited
	ended = m.read("effects") != ""
	m.check(m.start())
	if m.t.Failed() {
		m.t.Logf("the log of the first lvmd:\n%s", log)
	}
	return ended
}

func TestLVMKilledWhileADiskGrows(t *testing.T) {
	device, file := loopDisk(t, 64<<20)
	n := bareNode(t, "{name: carve, devices: [{path: "+device+"}]}")
	n.standIn()
	p := n.start()
	const more = 32 << 20
	size, room := int64(64<<20), p.available()
	// grow has pvresize killed. It returns true when that had fewer effects.
	grow := func(number int, whom string) (ended bool) {
		t.Logf("pvresize killed before effect %d, with %s", number, whom)
		size, room = size+more, room+more
		n.ordain("pvresize", number, whom)
		if err := os.Truncate(file, size); err != nil {
			t.Fatal(err)
		}
		byHand(t, "losetup", "--set-capacity", device)
		wait(t, "the command ended, or was killed", func() bool { return n.read("effects") != "" || n.read("slain") != "" })
		ended = n.read("effects") != ""
		if !ended && whom == "lvmd" {
			wait(t, "lvmd is dead", func() bool { return p.dead(time.Millisecond) })
			p = n.start()
		}
		wait(t, "the enlarged disk is used to its end", func() bool { return p.available() == room })
		v := p.create(create("pvc-1", room, ""))
		clean(t, v)
		p.delete(v.GetId())
		wait(t, "the volume is gone", func() bool { return p.available() == room })
		return ended
	}
	if !soaking {
		grow(2, anyOf(chance(t), "lvm", "lvmd"))
		return
	}
	for _, whom := range []string{"lvm", "lvmd"} {
		for number := 1; !grow(number, whom); number++ {
		}
	}
}

func TestLvmdKilledWhileAGroupIsMade(t *testing.T) {
	m := newMakers(t)
	for number := range places(chance(t), 1, 14) {
		p := m.startMortal(number)
		place := m.read("died")
		p.kill()
		t.Logf("place %d: %s", number, place)
		m.check(m.start())
		if t.Failed() {
			t.FailNow()
		}
		if place == "" {
			return
		}
	}
}
