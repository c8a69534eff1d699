//go:build kernel

package lvmd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/waittest"
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
	// least is how many effects the command has at least.
	least int
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
	{"a volume is created", "lvcreate", kept, creating, 6},
	{"a volume is expanded", "lvextend", kept, expanding, 5},
	{"a volume is deleted", "lvremove", kept, deleting, 4},
	{"a volume is copied", "lvcreate", kept, copying, 6},
	{"a copy is complete", "lvchange", kept, copying, 2},
}

var thinDrills = []drill{
	{"a thin volume is created", "lvcreate", kept, creating, 8},
	{"a thin volume is expanded", "lvextend", kept, expanding, 6},
	{"a thin volume is deleted", "lvremove", kept, deleting, 4},
	{"a snapshot is taken", "lvcreate", kept, snapshotting, 8},
	{"a snapshot is deleted", "lvremove", []func(*saga, *process){keeping, snapshotting}, func(s *saga, p *process) { s.delete(p, "snapshot") }, 5},
	{"a snapshot is restored", "lvcreate", []func(*saga, *process){keeping, snapshotting}, func(s *saga, p *process) { s.clone(p, "pvc-restored", "snapshot") }, 8},
	{"a thin volume is cloned", "lvcreate", kept, copying, 8},
}

var mirrorDrills = []drill{
	{"a RAID volume is created", "lvcreate", kept, creating, 35},
	{"a RAID volume is expanded", "lvextend", kept, expanding, 10},
	{"a RAID volume is deleted", "lvremove", kept, deleting, 12},
}

// wideDrills are for volumes that lie on several devices, of which an extent is larger.
var wideDrills = []drill{
	{"a wide volume is created", "lvcreate", kept, creating, 6},
	{"a wide volume is expanded", "lvextend", kept, expandingFar, 5},
	{"a wide volume is deleted", "lvremove", kept, deleting, 4},
}

// TestLVMKilledInTheMiddleOfACommand and those like it kill LVM as lvmd runs it by
// default, in a process that lasts, and as it runs it with --lvm-lasting=false.
func TestLVMKilledInTheMiddleOfACommand(t *testing.T) {
	thickNode(t).killWithin(t, thickDrills,
		drillDeath{thickDrills[0], death{5, "lvm", true}}, drillDeath{thickDrills[1], death{4, "lvmd", true}},
		drillDeath{thickDrills[4], death{2, "lvm", false}})
}

func TestLVMKilledInTheMiddleOfACommandOnThinVolumes(t *testing.T) {
	poolNode(t).killWithin(t, thinDrills,
		drillDeath{thinDrills[5], death{5, "lvm", true}},
		// The pool is suspended, and its volume has a table that was never committed.
		drillDeath{thinDrills[1], death{5, "lvm", true}},
		// The volume is removed, and the pool was not told.
		drillDeath{thinDrills[2], death{3, "lvm", true}},
		drillDeath{thinDrills[4], death{4, "lvm", false}}, drillDeath{thinDrills[3], death{5, "lvm", false}})
}

func TestLVMKilledInTheMiddleOfACommandOnRAIDVolumes(t *testing.T) {
	mirrorNode(t).killWithin(t, mirrorDrills,
		// A part of it has a device, which has no table.
		drillDeath{mirrorDrills[0], death{19, "lvm", true}},
		// A table that was never committed is loaded, and its device and all parts of
		// it are suspended.
		drillDeath{mirrorDrills[1], death{10, "lvmd", true}},
		// Its bookkeeping lies bare.
		drillDeath{mirrorDrills[0], death{2, "lvm", false}})
}

func TestLVMKilledInTheMiddleOfACommandOnWideVolumes(t *testing.T) {
	layouts := []string{"raid5"}
	if soaking {
		layouts = []string{"striped", "raid5", "raid6", "raid10"}
	}
	for _, layout := range layouts {
		t.Run(layout, func(t *testing.T) {
			wideNode(t, layout).killWithin(t, wideDrills,
				drillDeath{wideDrills[1], death{7, "lvmd", true}}, drillDeath{wideDrills[0], death{12, "lvm", false}})
		})
	}
}

// death says where an LVM command is killed.
type death struct {
	// number is that of the effect before which it is killed.
	number int
	// whom is "lvm", or "lvmd" if lvmd is killed in the same moment.
	whom string
	// lasting has the command run in an lvm that lasts, as it does by default.
	lasting bool
}

func (d death) String() string {
	kind, with := "an lvm of its own", ""
	if d.lasting {
		kind = "a lasting lvm"
	}
	if d.whom == "lvmd" {
		with = " and lvmd with it"
	}
	return fmt.Sprintf("%s: %s is killed before effect %d%s", time.Now().UTC().Format(time.TimeOnly), kind, d.number, with)
}

// drillDeath says where the command of a drill is killed.
type drillDeath struct {
	drill drill
	death death
}

// killWithin does drills: all of them, killed at all effects, with lvmd and
// without, in a lasting lvm and in others, where that is wanted, otherwise those that
// are given.
func (n *node) killWithin(t *testing.T, drills []drill, given ...drillDeath) {
	t.Helper()
	n.standIn()
	if !soaking {
		var p *process
		for _, d := range given {
			if p == nil || n.lasting != d.death.lasting {
				if p != nil {
					p.kill()
				}
				n.lasting = d.death.lasting
				p = n.start()
			}
			var killed bool
			p, killed = n.exercise(t, p, d.drill, d.death)
			d.death.mustHit(t, killed)
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
			var p *process
			everyDeath(t, d.least, func(lasting bool) func(death) bool {
				if p != nil {
					p.kill()
				}
				n.lasting = lasting
				p = n.start()
				return func(at death) (killed bool) {
					p, killed = n.exercise(t, p, d, at)
					return killed
				}
			})
		})
		if t.Failed() {
			t.FailNow()
		}
	}
}

// mustHit fails the test when a command came to its end that was to be killed.
func (d death) mustHit(t *testing.T, killed bool) {
	t.Helper()
	if !killed {
		t.Errorf("%v: the command had fewer effects", d)
	}
}

// everyDeath has a command killed before each of its effects, with lvmd and without,
// in a lasting lvm and in others, and fails the test unless each of these came to the
// least number of deaths. begin prepares deaths in one kind of lvm, and returns what
// has the command killed, which returns false when the command had fewer effects.
func everyDeath(t *testing.T, least int, begin func(lasting bool) func(death) (killed bool)) {
	t.Helper()
	for _, lasting := range []bool{true, false} {
		kill := begin(lasting)
		for _, whom := range []string{"lvm", "lvmd"} {
			eachNumber(t, least, func(number int) bool { return kill(death{number, whom, lasting}) })
		}
	}
}

// eachNumber kills at 1, 2 and so on until nothing is killed, and fails the test when
// that came too soon.
func eachNumber(t *testing.T, least int, kill func(number int) (killed bool)) {
	t.Helper()
	for number := 1; ; number++ {
		killed := kill(number)
		if t.Failed() {
			t.FailNow()
		}
		if killed {
			continue
		}
		if number <= least {
			t.Fatalf("%d deaths, want at least %d", number-1, least)
		}
		return
	}
}

// exercise has one command of a drill killed, and checks what becomes of it. It
// returns the lvmd that runs then, and false when the command had fewer effects.
func (n *node) exercise(t *testing.T, p *process, d drill, at death) (_ *process, killed bool) {
	t.Helper()
	t.Logf("%s: %v", d.name, at)
	all := p.available()
	s := newSaga(n)
	for _, before := range d.before {
		before(s, p)
	}
	n.ordain(d.command, at)
	d.do(s, p)
	if killed = n.killed(at); killed && at.whom == "lvmd" {
		waittest.Until(t, "lvmd is dead", func() bool { return p.dead(time.Millisecond) })
		p = n.start()
	}
	s.check(p, all)
	return p, killed
}

// ordain has the next command of the name killed, see slay.
func (n *node) ordain(command string, d death) {
	n.t.Helper()
	for _, file := range []string{"effects", "slain"} {
		_ = os.Remove(filepath.Join(n.dir, file))
	}
	// All at once: who reads it must not find half of it.
	file := filepath.Join(n.dir, "slay")
	err := os.WriteFile(file+".new", []byte(command+" "+strconv.Itoa(d.number)+" "+d.whom), 0o600)
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		n.t.Fatal(fmt.Errorf("ordaining a death: %w", err))
	}
}

// killed waits until the command ended that ordain named, or was killed, and reports
// which. It fails the test when the command ran in another kind of lvm than the death
// is to be in.
func (n *node) killed(d death) (killed bool) {
	n.t.Helper()
	var slain, effects string
	waittest.Until(n.t, "the command ended, or was killed", func() bool {
		slain, effects = n.read("slain"), n.read("effects")
		return slain != "" || effects != ""
	})
	if lasting := strings.HasPrefix(slain+effects, lastingOne); lasting != d.lasting {
		n.t.Fatalf("%v: the command ran in a lasting lvm is %t, want %t", d, lasting, d.lasting)
	}
	if slain == "" {
		n.t.Logf("it had %s effects", strings.TrimPrefix(effects, lastingOne))
	}
	return slain != ""
}
