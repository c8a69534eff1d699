//go:build kernel

package lvmd_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/devmapper"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// growing has a thin pool that grows by 64 MiB when a tenth is used.
type growing struct{ *node }

const growingStep = 64 << 20

func newGrowing(t *testing.T) growing {
	n := thinNode(t, "overprovisioning: 4, dataThreshold: 10%, autoExtend: {step: 64Mi}")
	n.keeps = []string{"carve-pool"}
	n.standIn()
	return growing{n}
}

func (g growing) size() int64 {
	g.t.Helper()
	out := strings.TrimSpace(lvmByHand(g.t, "lvs", "--noheadings", "--units", "b", "--nosuffix", "-o", "lv_size", "carve/carve-pool"))
	size := must.Get(strconv.ParseInt(out, 10, 64))(g.t)
	return size
}

func (g growing) mapped() int64 {
	g.t.Helper()
	out := strings.Fields(byHand(g.t, "dmsetup", "table", "carve-carve--pool-tpool"))
	if len(out) < 2 {
		g.t.Fatalf("table %q", out)
	}
	sectors := must.Get(strconv.ParseInt(out[1], 10, 64))(g.t)
	return sectors * 512
}

// exercise kills the command that extends the pool, or lvmd after a command with fewer effects.
// It returns the running lvmd, and false when the command had fewer effects.
func (g growing) exercise(p *process, at killPoint) (_ *process, killed bool) {
	t := g.t
	t.Helper()
	t.Logf("the pool is extended: %v", at)
	before := g.size()
	s := newScenario(g.node)
	g.prepareKill("lvextend", at)
	filled := make(chan struct{})
	go func(p *process) {
		defer close(filled)
		// Writes may wait until the pool is resumed.
		s.create(p, create("pvc-kept", before/10, "")) // It is filled, rounded up to 4 MiB.
	}(p)
	if killed = g.killed(at); !killed {
		p.kill()
		p = g.start()
	} else if at.whom == "lvmd" {
		waittest.Until(t, "lvmd has ended", func() bool { return p.hasEnded(time.Millisecond) })
		p = g.start()
	}
	<-filled
	grown := func(to int64) {
		t.Helper()
		waittest.Until(t, "the pool has grown", func() bool {
			return p.state().GetClasses()[0].GetTotalBytes() == 4*to && !p.hasCondition("PoolDataHigh")
		})
		if size, mapped := g.size(), g.mapped(); size != to || mapped != to {
			t.Errorf("the pool has %d bytes by LVM's account, %d by the kernel's, want %d", size, mapped, to)
		}
	}
	grown(before + growingStep)
	if len(s.kept) != 1 {
		t.Error("the volume was not made")
	}
	now := before + growingStep
	if soaking {
		s.create(p, create("pvc-more", 8<<20, "")) // More than a tenth of the step.
		now += growingStep
		grown(now)
	}
	s.check(p, now)
	return p, killed
}

func (g growing) metadata() (size int64, used float64) {
	g.t.Helper()
	out := lvmByHand(g.t, "lvs", "--noheadings", "--units", "b", "--nosuffix", "-o", "lv_metadata_size,metadata_percent", "carve/carve-pool")
	if _, err := fmt.Sscan(out, &size, &used); err != nil {
		g.t.Fatalf("%q: %v", out, err)
	}
	return size, used
}

// exerciseMetadata lowers the metadata's threshold below their use by a reload, and kills the
// command that extends them. It returns the running lvmd, and false when the command had fewer
// effects.
func (g growing) exerciseMetadata(at killPoint) (p *process, killed bool) {
	t := g.t
	t.Helper()
	t.Logf("the metadata are extended: %v", at)
	config := func(threshold string) {
		g.config = "- {name: thin, default: true, volumeGroup: carve, type: thin, thin: {pool: carve-pool, size: 64Mi, " +
			"metadataSize: 4Mi, metadataThreshold: " + threshold + ", dataThreshold: 100%, autoExtend: {step: 64Mi}}}\n"
		g.writeConfig()
	}
	config("100%")
	p = g.start()
	all := p.available()
	// LVM does not know of these volumes, which take a block each.
	for number := range 120 {
		must.Succeed(t, devmapper.Message("carve-carve--pool", fmt.Sprintf("create_thin %d", 1000+number)))
	}
	before, used := g.metadata()
	if used < 20 || used > 30 {
		t.Fatalf("%.2f %% of the metadata are used", used)
	}
	g.prepareKill("lvextend", at)
	config("20%")
	must.Succeed(t, p.cmd.Process.Signal(syscall.SIGHUP))
	if killed = g.killed(at); killed && at.whom == "lvmd" {
		waittest.Until(t, "lvmd has ended", func() bool { return p.hasEnded(time.Millisecond) })
		p = g.start()
	}
	// If LVM was killed between its commit and the kernel's table, only another extension brings
	// the kernel to LVM's size.
	grown := func() bool {
		size, _ := g.metadata()
		return size == 2*before || killed && size == 4*before
	}
	waittest.Until(t, "the metadata are twice as large", func() bool { return grown() && !p.hasCondition("PoolMetadataHigh") })
	s := newScenario(g.node)
	s.create(p, create("pvc-kept", 8<<20, ""))
	s.snapshot(p, "snapshot", "pvc-kept")
	s.check(p, all)
	if !grown() {
		size, _ := g.metadata()
		t.Errorf("the metadata have %d bytes, want twice %d", size, before)
	}
	return p, killed
}

func TestLVMKilledWhileAThinPoolsMetadataGrow(t *testing.T) {
	g := newGrowing(t)
	if !soaking {
		at := killPoint{5, "lvm", true}
		g.lasting = at.lasting
		_, killed := g.exerciseMetadata(at)
		at.mustHit(t, killed)
		return
	}
	killAtEachEffect(t, leastMetadataEffects, func(lasting bool) func(killPoint) bool {
		g.lasting = lasting
		return func(at killPoint) bool {
			p, killed := g.exerciseMetadata(at)
			p.kill()
			g.removePool()
			return killed
		}
	})
}

const (
	leastMetadataEffects = 10
	leastPoolEffects     = 10
)

func (g growing) removePool() {
	g.t.Helper()
	lvmByHand(g.t, "lvremove", "--yes", "carve")
	must.Succeed(g.t, os.RemoveAll(g.dir+"/state"))
}

func TestLVMKilledWhileAThinPoolGrows(t *testing.T) {
	g := newGrowing(t)
	if !soaking {
		at := killPoint{6, "lvmd", false}
		_, killed := g.exercise(g.start(), at)
		at.mustHit(t, killed)
		return
	}
	p := g.start()
	killAtEachEffect(t, leastPoolEffects, func(lasting bool) func(killPoint) bool {
		g.lasting = lasting
		return func(at killPoint) (killed bool) {
			p.kill()
			g.removePool()
			p, killed = g.exercise(g.start(), at)
			return killed
		}
	})
}
