//go:build kernel

package lvmd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/devmapper"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func poolOf(t *testing.T, layout, settings string, devices ...string) *node {
	t.Helper()
	n := newNode(t, devices...)
	n.config = fmt.Sprintf("- {name: thin, default: true, volumeGroup: carve, type: thin, thin: {pool: carve-pool, size: 40Mi, layout: {%s}%s}}\n", layout, settings)
	n.keeps = []string{"carve-pool"}
	return n
}

// segments includes the numbers of devices or images.
func (n *node) segments() (data, metadata string) {
	n.t.Helper()
	return n.segmentsOf("carve-pool_tdata"), n.segmentsOf("carve-pool_tmeta")
}

func (n *node) segmentsOf(name string) string {
	n.t.Helper()
	out := lvmByHand(n.t, "lvs", "--all", "--noheadings", "-o", "segtype,stripes", "carve/"+name)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), ", ")
}

func TestARealPoolKeepsItsLayoutWhenItGrows(t *testing.T) {
	for _, tt := range []struct{ layout, data, metadata string }{
		{"type: striped, stripes: 2", "striped 2", "linear 1"},
		{"type: raid1", "raid1 2", "raid1 2"},
		{"type: raid10, stripes: 2", "raid10 4", "raid1 2"},
	} {
		t.Run(tt.layout, func(t *testing.T) {
			n := poolOf(t, tt.layout, ", metadataSize: 4Mi, metadataThreshold: 30%, overprovisioning: 2, dataThreshold: 50%, autoExtend: {step: 12Mi, limit: 64Mi}", spares(t, 96, 92, 88, 84)...)
			p := n.start()
			if data, metadata := n.segments(); data != tt.data || metadata != tt.metadata {
				t.Errorf("data is %q, metadata %q", data, metadata)
			}
			v := p.create(create("v", 40<<20, ""))
			Map(t, v)
			fill(t, v, 0x5a)
			waittest.Until(t, "the pool grows to its limit", func() bool {
				return p.state().GetClasses()[0].GetTotalBytes() == 2*64<<20 && p.hasCondition("PoolCannotGrow")
			})
			// Each volume takes a block of metadata: these pass the threshold but do not fill the
			// metadata, however late lvmd looks.
			for id := range 300 {
				must.Succeed(t, devmapper.Message("carve-carve--pool-tpool", fmt.Sprintf("create_thin %d", 1000+id)))
			}
			waittest.Until(t, "its metadata has doubled", func() bool {
				out := lvmByHand(t, "lvs", "--noheadings", "--units", "m", "--nosuffix", "-o", "lv_metadata_size", "carve/carve-pool")
				return strings.HasPrefix(strings.TrimSpace(out), "8")
			})
			if data, metadata := n.segments(); data != tt.data || metadata != tt.metadata {
				t.Errorf("after it grew data is %q, metadata %q", data, metadata)
			}
			if err := n.imagesApart(); err != nil {
				t.Error(err)
			}
			p.delete(v.GetId())
			waittest.Until(t, "the volume is gone", func() bool { return len(n.leftovers()) == 0 })
		})
	}
}

// imagesApart returns an error if a device has two images of one RAID volume.
func (n *node) imagesApart() error {
	images := map[string]string{}
	out := lvmByHand(n.t, "lvs", "--all", "--noheadings", "--separator", " ", "-o", "lv_name,devices", "carve")
	for line := range strings.Lines(out) {
		name, devices, _ := strings.Cut(strings.TrimSpace(line), " ")
		volume, image, isImage := strings.Cut(strings.Trim(name, "[]"), "_rimage_")
		if !isImage {
			continue
		}
		for device := range strings.SplitSeq(devices, ",") {
			device, _, _ = strings.Cut(device, "(")
			if other, ok := images[volume+device]; ok && other != image {
				return fmt.Errorf("%s has images %s and %s of %s:\n%s", device, other, image, volume, out)
			}
			images[volume+device] = image
		}
	}
	return nil
}

func TestARealRAIDPoolOutlivesADisk(t *testing.T) {
	devices := spares(t, 96, 48)
	faulty, fail, work := leg(t, devices[1])
	n := poolOf(t, "type: raid1", "", devices[0], faulty)
	n.config = strings.Replace(n.config, "size: 40Mi", "size: 24Mi", 1)
	p := n.start()
	v := p.create(create("v", 16<<20, "ext4"))
	dir, unmount := mount(t, v)
	file := filepath.Join(dir, "data")
	overwrite(t, file, "before")
	// An administrator would have to revert a change of the metadata without the disk.
	n.waitUntagged()
	fail()
	overwrite(t, file, "behind")
	waittest.Until(t, "the loss is a condition of class and volume", func() bool {
		return p.hasCondition("Degraded") && strings.Contains(p.conditions(), "Degraded")
	})
	if b, err := os.ReadFile(file); err != nil || string(b) != "behind" {
		t.Errorf("%q, error %v", b, err)
	}
	unmount()
	work()
	lvmByHand(t, "lvchange", "--refresh", "carve/carve-pool")
	waittest.Until(t, "the disk is back", func() bool { return p.conditions() == "" && !p.hasCondition("Degraded") })
	p.delete(v.GetId())
	waittest.Until(t, "the volume is gone", func() bool { return len(n.leftovers()) == 0 })
}

// exercisePool wants exactly one pool from the next lvmd.
func (n *node) exercisePool(t *testing.T, command string, at killPoint) (killed bool) {
	t.Helper()
	t.Logf("a pool of a layout is made by %s: %v", command, at)
	n.prepareKill(command, at)
	if at.whom == "lvm" {
		// lvmd serves without the pool and would retry later; another lvmd tries at once.
		n.start().kill()
		killed = n.killed(at)
	} else {
		cmd := n.command()
		must.Succeed(t, cmd.Start())
		killed = n.killed(at)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	p := n.start()
	waittest.Until(t, "there is a pool", func() bool { return p.available() == 40<<20 })
	v := p.create(create("v", 8<<20, ""))
	Map(t, v)
	p.delete(v.GetId())
	waittest.Until(t, "the volume is gone", func() bool { return p.available() == 40<<20 && len(n.leftovers()) == 0 })
	if left := strings.Fields(lvmByHand(t, "lvs", "--noheadings", "-o", "lv_name", "carve")); !slices.Equal(left, []string{"carve-pool"}) {
		t.Errorf("there are %q", left)
	}
	p.kill()
	lvmByHand(t, "lvremove", "--yes", "carve")
	must.Succeed(t, os.RemoveAll(n.dir+"/state"))
	return killed
}

func TestLVMKilledWhileAPoolOfALayoutIsMade(t *testing.T) {
	n := poolOf(t, "type: raid1", "", "/dev/vdb", "/dev/vdc")
	n.standIn()
	if !soaking {
		for _, c := range []struct {
			command string
			at      killPoint
		}{
			{"lvcreate", killPoint{15, "lvm", true}}, {"lvconvert", killPoint{6, "lvmd", true}}, {"lvconvert", killPoint{14, "lvm", false}},
		} {
			n.lasting = c.at.lasting
			c.at.mustHit(t, n.exercisePool(t, c.command, c.at))
		}
		return
	}
	for _, command := range []string{"lvcreate", "lvconvert"} {
		killAtEachEffect(t, 15, func(lasting bool) func(killPoint) bool {
			n.lasting = lasting
			return func(at killPoint) bool { return n.exercisePool(t, command, at) }
		})
	}
}
