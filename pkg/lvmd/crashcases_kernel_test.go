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

type crashCase struct {
	name    string
	command string
	// before runs without a kill.
	before []func(*scenario, *process)
	// do causes the command.
	do func(*scenario, *process)
	// least is the minimum number of the command's effects.
	least int
}

// lasts is false for growing a raw volume that is not thin, which runs in a process of its own
// that holds LVM's lock.
func (d crashCase) lasts() bool { return d.command != "lvextend" || strings.Contains(d.name, "thin") }

func keeping(s *scenario, p *process)      { s.create(p, create("pvc-kept", 8<<20, "")) }
func snapshotting(s *scenario, p *process) { s.snapshot(p, "snapshot", "pvc-kept") }
func creating(s *scenario, p *process)     { s.create(p, create("pvc-new", 8<<20, "")) }
func expanding(s *scenario, p *process)    { s.expand(p, "pvc-kept", 12<<20) }
func expandingFar(s *scenario, p *process) { s.expand(p, "pvc-kept", 30<<20) }
func deleting(s *scenario, p *process)     { s.delete(p, "pvc-kept") }
func copying(s *scenario, p *process)      { s.clone(p, "pvc-copy", "pvc-kept") }

var kept = []func(*scenario, *process){keeping}

var thickCrashCases = []crashCase{
	{"a volume is created", "lvcreate", kept, creating, 6},
	{"a volume is expanded", "lvextend", kept, expanding, 5},
	{"a volume is deleted", "lvremove", kept, deleting, 4},
	{"a volume is copied", "lvcreate", kept, copying, 6},
	{"a copy is complete", "lvchange", kept, copying, 2},
}

var thinCrashCases = []crashCase{
	{"a thin volume is created", "lvcreate", kept, creating, 8},
	{"a thin volume is expanded", "lvextend", kept, expanding, 6},
	{"a thin volume is deleted", "lvremove", kept, deleting, 4},
	{"a snapshot is taken", "lvcreate", kept, snapshotting, 8},
	{"a snapshot is deleted", "lvremove", []func(*scenario, *process){keeping, snapshotting}, func(s *scenario, p *process) { s.delete(p, "snapshot") }, 4},
	{"a snapshot is restored", "lvcreate", []func(*scenario, *process){keeping, snapshotting}, func(s *scenario, p *process) { s.clone(p, "pvc-restored", "snapshot") }, 8},
	{"a thin volume is cloned", "lvcreate", kept, copying, 8},
}

var mirrorCrashCases = []crashCase{
	{"a RAID volume is created", "lvcreate", kept, creating, 35},
	{"a RAID volume is expanded", "lvextend", kept, expanding, 10},
	{"a RAID volume is deleted", "lvremove", kept, deleting, 12},
}

// wideCrashCases are for volumes that span several devices, each smaller than the volume's
// extents.
var wideCrashCases = []crashCase{
	{"a wide volume is created", "lvcreate", kept, creating, 6},
	{"a wide volume is expanded", "lvextend", kept, expandingFar, 5},
	{"a wide volume is deleted", "lvremove", kept, deleting, 4},
}

func TestLVMKilledInTheMiddleOfACommand(t *testing.T) {
	thickNode(t).killWithin(t, thickCrashCases,
		killedCase{thickCrashCases[0], killPoint{5, "lvm", true}}, killedCase{thickCrashCases[1], killPoint{4, "lvmd", true}},
		killedCase{thickCrashCases[4], killPoint{2, "lvm", false}})
}

func TestLVMKilledInTheMiddleOfACommandOnThinVolumes(t *testing.T) {
	poolNode(t).killWithin(t, thinCrashCases,
		// LVM knows the volume or snapshot; the pool does not.
		killedCase{thinCrashCases[0], killPoint{2, "lvmd", true}}, killedCase{thinCrashCases[3], killPoint{2, "lvmd", true}},
		killedCase{thinCrashCases[5], killPoint{5, "lvm", true}},
		// The pool is suspended, and its volume has an uncommitted table.
		killedCase{thinCrashCases[1], killPoint{5, "lvm", true}},
		// The volume is removed; the pool does not know.
		killedCase{thinCrashCases[2], killPoint{3, "lvm", true}},
		killedCase{thinCrashCases[4], killPoint{4, "lvm", false}}, killedCase{thinCrashCases[3], killPoint{5, "lvm", false}})
}

func TestLVMKilledInTheMiddleOfACommandOnRAIDVolumes(t *testing.T) {
	mirrorNode(t).killWithin(t, mirrorCrashCases,
		// A component has a device without a table.
		killedCase{mirrorCrashCases[0], killPoint{19, "lvm", true}},
		// An uncommitted table is loaded; the device and its components are suspended.
		killedCase{mirrorCrashCases[1], killPoint{10, "lvmd", true}},
		// Its bookkeeping volume is exposed.
		killedCase{mirrorCrashCases[0], killPoint{2, "lvm", false}})
}

func TestLVMKilledInTheMiddleOfACommandOnWideVolumes(t *testing.T) {
	layouts := []string{"raid5"}
	if soaking {
		layouts = []string{"striped", "raid5", "raid6", "raid10"}
	}
	for _, layout := range layouts {
		t.Run(layout, func(t *testing.T) {
			wideNode(t, layout).killWithin(t, wideCrashCases,
				killedCase{wideCrashCases[1], killPoint{7, "lvmd", true}}, killedCase{wideCrashCases[0], killPoint{12, "lvm", false}})
		})
	}
}

type killPoint struct {
	// The command is killed before this effect.
	number int
	// whom is "lvm", or "lvmd" to kill lvmd at the same moment.
	whom    string
	lasting bool
}

func (d killPoint) String() string {
	kind, with := "an lvm of its own", ""
	if d.lasting {
		kind = "a lasting lvm"
	}
	if d.whom == "lvmd" {
		with = " and lvmd with it"
	}
	return fmt.Sprintf("%s: %s is killed before effect %d%s", time.Now().UTC().Format(time.TimeOnly), kind, d.number, with)
}

type killedCase struct {
	crashCase crashCase
	killPoint killPoint
}

// killWithin runs the given cases, or, when soaking, all: at all effects, with and without
// lvmd, in both kinds of lvm.
func (n *node) killWithin(t *testing.T, crashCases []crashCase, given ...killedCase) {
	t.Helper()
	n.standIn()
	if !soaking {
		var p *process
		for _, d := range given {
			if p == nil || n.lasting != d.killPoint.lasting {
				if p != nil {
					p.kill()
				}
				n.lasting = d.killPoint.lasting
				p = n.start()
			}
			var killed bool
			p, killed = n.exercise(t, p, d.crashCase, d.killPoint)
			d.killPoint.mustHit(t, killed)
			if t.Failed() {
				t.FailNow()
			}
		}
		return
	}
	for _, d := range crashCases {
		t.Run(d.name, func(t *testing.T) {
			n := *n
			n.t = t
			var p *process
			killAtEachEffect(t, d.least, func(lasting bool) func(killPoint) bool {
				if p != nil {
					p.kill()
				}
				n.lasting = lasting
				p = n.start()
				return func(at killPoint) (killed bool) {
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

func (d killPoint) mustHit(t *testing.T, killed bool) {
	t.Helper()
	if !killed {
		t.Errorf("%v: the command had fewer effects", d)
	}
}

// killAtEachEffect runs both kinds of lvm, with and without killing lvmd, and wants at least
// least kills from each. The function from begin returns false when the command had fewer
// effects.
func killAtEachEffect(t *testing.T, least int, begin func(lasting bool) func(killPoint) (killed bool)) {
	t.Helper()
	for _, lasting := range []bool{true, false} {
		kill := begin(lasting)
		for _, whom := range []string{"lvm", "lvmd"} {
			eachNumber(t, least, func(number int) bool { return kill(killPoint{number, whom, lasting}) })
		}
	}
}

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
			t.Fatalf("%d kills, want at least %d", number-1, least)
		}
		return
	}
}

// exercise returns the running lvmd, and false when the command had fewer effects.
func (n *node) exercise(t *testing.T, p *process, d crashCase, at killPoint) (_ *process, killed bool) {
	t.Helper()
	at.lasting = at.lasting && d.lasts()
	t.Logf("%s: %v", d.name, at)
	all := p.available()
	s := newScenario(n)
	for _, before := range d.before {
		before(s, p)
	}
	n.prepareKill(d.command, at)
	d.do(s, p)
	if killed = n.killed(at); killed && at.whom == "lvmd" {
		waittest.Until(t, "lvmd has ended", func() bool { return p.hasEnded(time.Millisecond) })
		p = n.start()
	}
	s.check(p, all)
	return p, killed
}

func (n *node) prepareKill(command string, d killPoint) {
	n.t.Helper()
	for _, file := range []string{"effects", "killed"} {
		_ = os.Remove(filepath.Join(n.dir, file))
	}
	// Atomically: a reader must not find half of it.
	file := filepath.Join(n.dir, "kill")
	err := os.WriteFile(file+".new", []byte(command+" "+strconv.Itoa(d.number)+" "+d.whom), 0o600)
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		n.t.Fatal(fmt.Errorf("preparing a kill: %w", err))
	}
}

// killed waits until the command of prepareKill has ended. It fails the test if another kind of
// lvm ran it.
func (n *node) killed(d killPoint) (killed bool) {
	n.t.Helper()
	var killedFile, effects string
	waittest.Until(n.t, "the command ended, or was killed", func() bool {
		killedFile, effects = n.read("killed"), n.read("effects")
		return killedFile != "" || effects != ""
	})
	if lasting := strings.HasPrefix(killedFile+effects, lastingOne); lasting != d.lasting {
		n.t.Fatalf("%v: the command ran in a lasting lvm is %t, want %t", d, lasting, d.lasting)
	}
	if killedFile == "" {
		n.t.Logf("it had %s effects", strings.TrimPrefix(effects, lastingOne))
	}
	return killedFile != ""
}
