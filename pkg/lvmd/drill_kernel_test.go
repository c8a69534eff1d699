//go:build kernel

package lvmd_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// drill is something that lvmd is asked for, in the middle of which an LVM command
// is killed.
type drill struct {
	name string
	// command is the one of LVM's that is killed.
	command string
	// before is asked for when nobody is killed.
	before []func(*saga, *process)
	// do is what the command is for.
	do func(*saga, *process)
	// most is about how many effects the command has.
	most int
}

func keeping(s *saga, p *process)      { s.create(p, create("pvc-kept", 8<<20, "")) }
func snapshotting(s *saga, p *process) { s.snapshot(p, "snapshot", "pvc-kept") }
func creating(s *saga, p *process)     { s.create(p, create("pvc-new", 8<<20, "")) }
func expanding(s *saga, p *process)    { s.expand(p, "pvc-kept", 12<<20) }
func expandingFar(s *saga, p *process) { s.expand(p, "pvc-kept", 30<<20) }
func deleting(s *saga, p *process)     { s.delete(p, "pvc-kept") }
func copying(s *saga, p *process)      { s.clone(p, "pvc-copy", "pvc-kept") }

var kept = []func(*saga, *process){keeping}

var thickDrills = []drill{
	{"a volume is created", "lvcreate", kept, creating, 9},
	{"a volume is expanded", "lvextend", kept, expanding, 9},
	{"a volume is deleted", "lvremove", kept, deleting, 7},
	{"a volume is copied", "lvcreate", kept, copying, 9},
	{"a copy is complete", "lvchange", kept, copying, 4},
}

var thinDrills = []drill{
	{"a thin volume is created", "lvcreate", kept, creating, 15},
	{"a thin volume is expanded", "lvextend", kept, expanding, 12},
	{"a thin volume is deleted", "lvremove", kept, deleting, 8},
	{"a snapshot is taken", "lvcreate", kept, snapshotting, 15},
	{"a snapshot is deleted", "lvremove", []func(*saga, *process){keeping, snapshotting}, func(s *saga, p *process) { s.delete(p, "snapshot") }, 12},
	{"a snapshot is restored", "lvcreate", []func(*saga, *process){keeping, snapshotting}, func(s *saga, p *process) { s.clone(p, "pvc-restored", "snapshot") }, 15},
	{"a thin volume is cloned", "lvcreate", kept, copying, 15},
}

var mirrorDrills = []drill{
	{"a RAID volume is created", "lvcreate", kept, creating, 40},
	{"a RAID volume is expanded", "lvextend", kept, expanding, 20},
	{"a RAID volume is deleted", "lvremove", kept, deleting, 25},
}

// wideDrills are for volumes that lie on several devices, of which an extent is larger.
var wideDrills = []drill{
	{"a wide volume is created", "lvcreate", kept, creating, 80},
	{"a wide volume is expanded", "lvextend", kept, expandingFar, 40},
	{"a wide volume is deleted", "lvremove", kept, deleting, 60},
}

func TestLVMKilledInTheMiddleOfACommand(t *testing.T) { thickNode(t).killWithin(t, thickDrills) }

func TestLVMKilledInTheMiddleOfACommandOnThinVolumes(t *testing.T) {
	poolNode(t).killWithin(t, thinDrills, death{thinDrills[5], 5, "lvm"}, death{thinDrills[4], 4, "lvm"}, death{thinDrills[3], 5, "lvm"},
		// The pool is suspended, and its volume has a table that was never committed.
		death{thinDrills[1], 5, "lvm"},
		// The volume is removed, and the pool was not told.
		death{thinDrills[2], 3, "lvm"})
}

func TestLVMKilledInTheMiddleOfACommandOnRAIDVolumes(t *testing.T) {
	mirrorNode(t).killWithin(t, mirrorDrills,
		// Its bookkeeping lies bare; a part of it has a device, which has no table.
		death{mirrorDrills[0], 2, "lvm"}, death{mirrorDrills[0], 19, "lvm"},
		// A table that was never committed is loaded, and its device and all parts of
		// it are suspended.
		death{mirrorDrills[1], 10, "lvmd"})
}

func TestLVMKilledInTheMiddleOfACommandOnWideVolumes(t *testing.T) {
	layouts := []string{"raid5"}
	if soaking {
		layouts = []string{"striped", "raid5", "raid6", "raid10"}
	}
	for _, layout := range layouts {
		t.Run(layout, func(t *testing.T) {
			wideNode(t, layout).killWithin(t, wideDrills, death{wideDrills[0], 12, "lvm"}, death{wideDrills[1], 7, "lvmd"})
		})
	}
}

// death is of whom, before which effect, and in the middle of what.
type death struct {
	drill  drill
	number int
	whom   string
}

// killWithin does drills: all of them, killed at all effects, with lvmd and
// without, where that is wanted, otherwise those that are given, or a few.
func (n *node) killWithin(t *testing.T, drills []drill, given ...death) {
	t.Helper()
	n.standIn()
	if !soaking {
		random := chance(t)
		p := n.start()
		all := p.available()
		if len(given) == 0 {
			for range 3 {
				d := drills[random.IntN(len(drills))]
				given = append(given, death{d, 1 + random.IntN(d.most), anyOf(random, "lvm", "lvmd")})
			}
		}
		for _, d := range given {
			p, _ = n.exercise(t, p, d.drill, all, d.number, d.whom)
			if t.Failed() {
				t.FailNow()
			}
		}
		return
	}
	for _, d := range drills {
		t.Run(d.name, func(t *testing.T) {
			n := *n
			n.t = t
			p := n.start()
			all := p.available()
			for _, whom := range []string{"lvm", "lvmd"} {
				for number, ended := 1, false; !ended; number++ {
					p, ended = n.exercise(t, p, d, all, number, whom)
					if t.Failed() {
						t.FailNow()
					}
				}
			}
		})
		if t.Failed() {
			t.FailNow()
		}
	}
}

func anyOf(random *rand.Rand, words ...string) string { return words[random.IntN(len(words))] }

// exercise has one command killed before its effect of the number, and lvmd with it
// if whom says so, and checks what becomes of it. It returns the lvmd that lives
// then, and true when the command had fewer effects.
func (n *node) exercise(t *testing.T, p *process, d drill, all int64, number int, whom string) (*process, bool) {
	t.Helper()
	t.Logf("%s: %s, killed before effect %d, with %s", time.Now().UTC().Format(time.TimeOnly), d.name, number, whom)
	s := newSaga(n)
	for _, before := range d.before {
		before(s, p)
	}
	n.ordain(d.command, number, whom)
	d.do(s, p)
	wait(t, "the command ended, or was killed", func() bool { return n.read("effects") != "" || n.read("slain") != "" })
	ended := n.read("effects") != ""
	if ended {
		t.Logf("it had %s", n.read("effects"))
	} else if whom == "lvmd" {
		wait(t, "lvmd is dead", func() bool { return p.dead(time.Millisecond) })
		p = n.start()
	}
	s.check(p, all)
	return p, ended
}

// ordain has the next command of the name killed, see slay.
func (n *node) ordain(command string, number int, whom string) {
	n.t.Helper()
	for _, file := range []string{"effects", "slain"} {
		_ = os.Remove(filepath.Join(n.dir, file))
	}
	// All at once: who reads it must not find half of it.
	file := filepath.Join(n.dir, "slay")
	err := os.WriteFile(file+".new", []byte(command+" "+strconv.Itoa(number)+" "+whom), 0o600)
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		n.t.Fatal(fmt.Errorf("ordaining a death: %w", err))
	}
}
