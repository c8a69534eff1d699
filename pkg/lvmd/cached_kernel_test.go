//go:build kernel

package lvmd_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// layering is a layer that an administrator's lvconvert puts below the device of our volume.
type layering struct {
	what, class string
	// make and undo act on the volume, or on its pool.
	make, undo func(t testing.TB, volume string)
	// least is the minimum number of an activation's effects, number the one before which it is
	// killed.
	least, number int
}

var layerings = []layering{
	{"a cache volume", "local", withCache("cache", "--cachevol"), uncache, 20, 14},
	{"a cache pool", "local", withCache("cache", "--cachepool"), uncache, 12, 12},
	{"a write cache", "local", withCache("writecache", "--cachevol"), uncache, 8, 8},
	{"a cache volume of a mirror", "raid1", withCache("cache", "--cachevol"), uncache, 14, 14},
	{"a cache volume of a thin pool", "thin", withCache("cache", "--cachevol"), uncache, 16, 16},
	{"a cache pool of a thin pool", "thin", withCache("cache", "--cachepool"), uncache, 16, 16},
	{"integrity", "raid1", func(t testing.TB, volume string) {
		waittest.Until(t, "the mirror is in sync", func() bool {
			return strings.TrimSpace(lvmByHand(t, "lvs", "--noheadings", "-o", "sync_percent", "carve/"+volume)) == "100.00"
		})
		lvmByHand(t, "lvconvert", "--yes", "--raidintegrity", "y", "carve/"+volume)
	}, func(t testing.TB, volume string) {
		lvmByHand(t, "lvconvert", "--yes", "--raidintegrity", "n", "carve/"+volume)
	}, 14, 14},
}

func withCache(kind, option string) func(testing.TB, string) {
	return func(t testing.TB, volume string) {
		lvmByHand(t, "lvcreate", "--yes", "--name", backup, "--size", "16M", "carve", "/dev/vdc")
		if kind == "writecache" {
			lvmByHand(t, "lvchange", "--activate", "n", "carve/"+backup, "carve/"+volume)
		}
		lvmByHand(t, "lvconvert", "--yes", "--type", kind, option, backup, "carve/"+volume)
		lvmByHand(t, "lvchange", "--activate", "y", "carve/"+volume)
	}
}

func uncache(t testing.TB, volume string) {
	lvmByHand(t, "lvconvert", "--yes", "--uncache", "carve/"+volume)
}

func (n *node) devices() (names []string) {
	n.t.Helper()
	for name := range strings.FieldsSeq(mappings(n.t, "-o", "name")) {
		if strings.HasPrefix(name, n.group+"-") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// stack returns a node without a running lvmd, and a volume that holds 0x5a.
func (kind *layering) stack(t *testing.T) (*node, *lvmdv1.Volume) {
	t.Helper()
	n := newNode(t, "/dev/vdb", "/dev/vdc")
	switch kind.class {
	case "raid1":
		n.config += "- {name: raid1, volumeGroup: carve, type: raid1}\n"
	case "thin":
		n.config += "- {name: thin, volumeGroup: carve, type: thin, thin: {pool: carve-pool, size: 64Mi}}\n"
		n.keeps = []string{"carve-pool"}
	}
	p := n.start()
	v := p.create(inClass(create("pvc-layered", layeredSize, ""), kind.class))
	must.Succeed(t, p.stop())
	kind.make(t, kind.below(v))
	fill(t, v, 0x5a)
	return n, v
}

const layeredSize = 16 << 20

func (kind *layering) below(v *lvmdv1.Volume) string {
	if kind.class == "thin" {
		return "carve-pool"
	}
	return v.GetId()
}

func (kind *layering) unstack(n *node, v *lvmdv1.Volume) {
	n.t.Helper()
	checkFilled(n.t, v, 0x5a, layeredSize)
	kind.undo(n.t, kind.below(v))
	p := n.start()
	p.delete(v.GetId())
	waittest.Until(n.t, "nothing is left", func() bool { return len(n.leftovers()) == 0 }, func() any { return n.leftovers() })
}

func (n *node) deactivate() {
	n.t.Helper()
	lvmByHand(n.t, "vgchange", "--activate", "n", n.group)
	if left := n.devices(); len(left) > 0 {
		n.t.Fatalf("devices of the inactive group: %q", left)
	}
}

// killActivation returns false if the activation had fewer effects. The leftovers may keep LVM
// from activating the volume, so it tries.
func (n *node) killActivation(volume string, number int) bool {
	n.t.Helper()
	at := killPoint{number, "lvm", false}
	n.prepareKill("lvchange", at)
	try := func(program string) ([]byte, error) {
		cmd := exec.Command(program, "lvchange", "--activate", "y", n.group+"/"+volume, "--config", handConfig)
		cmd.Env = append(os.Environ(), "DM_DISABLE_UDEV=1")
		return cmd.CombinedOutput()
	}
	out, err := try(n.lvm)
	if !n.killed(at) {
		if err != nil {
			n.t.Fatalf("the activation: %v\n%s", err, out)
		}
		return false
	}
	left := n.devices()
	out, err = try("lvm")
	n.t.Logf("killed before effect %d, which leaves %q; the next activation by hand: %v %s", number, left, err, out)
	return true
}

// The activation is killed before lvmd starts, and, for volumes outside a pool, within lvmd;
// then an administrator activates the volume.
func TestLVMKilledWhileAVolumeWithACacheIsActivated(t *testing.T) {
	for _, kind := range layerings {
		t.Run(kind.what, func(t *testing.T) {
			n, v := kind.stack(t)
			n.standIn()
			exercise := func(number int) bool {
				n.deactivate()
				killed := n.killActivation(v.GetId(), number)
				p := n.start()
				waittest.Until(t, "lvmd activates the volume", func() bool { return slices.Contains(n.active(), v.GetId()) },
					func() any { return n.devices() })
				must.Succeed(t, p.stop())
				if kind.class == "thin" {
					return killed
				}
				n.deactivate()
				at := killPoint{number, "lvm", false}
				n.prepareKill("lvchange", at)
				p = n.start()
				killed = n.killed(at) || killed
				must.Succeed(t, p.stop())
				lvmByHand(t, "lvchange", "--activate", "y", n.group+"/"+v.GetId())
				return killed
			}
			if soaking {
				eachNumber(t, kind.least, exercise)
			} else if !exercise(kind.number) {
				t.Errorf("the activation has fewer than %d effects", kind.number)
			}
			kind.unstack(n, v)
		})
	}
}

func (n *node) killCheck(volume, checking string) {
	n.t.Helper()
	_ = os.Remove(checking)
	slow := strings.TrimSpace(n.read("config"))
	cmd := exec.Command("lvm", "lvchange", "--activate", "y", n.group+"/"+volume, "--config", handConfig+" "+slow)
	cmd.Env = append(os.Environ(), "DM_DISABLE_UDEV=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must.Succeed(n.t, cmd.Start())
	waittest.Succeeds(n.t, "the cache is checked", func() error { _, err := os.Stat(checking); return err })
	must.Succeed(n.t, syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL))
	_ = cmd.Wait()
}

// After a reboot, the check in lvmd's activation is killed at the deadline of LVM's commands,
// and an administrator activates the volume. Then an administrator's activation is killed.
func TestACheckOfACacheThatTakesTooLongLeavesNothingInTheWay(t *testing.T) {
	for _, kind := range layerings[:2] {
		t.Run(kind.what, func(t *testing.T) {
			n, v := kind.stack(t)
			n.deactivate()
			checking, goOn := n.slowlyChecked("cache_check")
			n.timeout = 10 * time.Second
			p := n.start() // The start waits for the activation.
			must.Get(os.Stat(checking))(t)
			must.Succeed(t, p.stop())
			if left := n.devices(); len(left) > 0 {
				t.Errorf("the activation that was killed left the devices %q", left)
			}
			lvmByHand(t, "lvchange", "--activate", "y", n.group+"/"+v.GetId())

			n.deactivate()
			n.killCheck(v.GetId(), checking)
			if left := n.devices(); len(left) == 0 {
				t.Error("the activation by hand that was killed left no device")
			}
			must.Succeed(t, os.WriteFile(goOn, nil, 0o600))
			p = n.start()
			waittest.Until(t, "the volume has its device", func() bool { return slices.Contains(n.active(), v.GetId()) }, func() any { return n.devices() })
			must.Succeed(t, p.stop())
			kind.unstack(n, v)
		})
	}
}

// An activation of our volume and one of an administrator's are killed. A process holds a
// leftover component of the former open.
func TestOfCachesOnlyLeftoversOfOurVolumesAreRemoved(t *testing.T) {
	kind := layerings[0]
	n, v := kind.stack(t)
	lvmByHand(t, "lvcreate", "--yes", "--name", "theirs", "--size", "16M", "carve", "/dev/vdb")
	lvmByHand(t, "lvcreate", "--yes", "--name", "theircache", "--size", "16M", "carve", "/dev/vdc")
	lvmByHand(t, "lvconvert", "--yes", "--type", "cache", "--cachevol", "theircache", "carve/theirs")
	n.deactivate()
	checking, goOn := n.slowlyChecked("cache_check")
	n.killCheck("theirs", checking)
	theirs := n.devices()
	n.killCheck(v.GetId(), checking)
	if all := n.devices(); len(theirs) == 0 || len(all) == len(theirs) {
		t.Fatalf("killed activations left the devices %q and then %q", theirs, all)
	}
	must.Succeed(t, os.WriteFile(goOn, nil, 0o600))
	cache := "carve-" + backup + "_cvol"
	inUse := must.Get(os.Open("/dev/mapper/" + cache + "-cmeta"))(t)
	defer inUse.Close()
	want := func(names ...string) {
		t.Helper()
		left := n.devices()
		for _, name := range names {
			if !slices.Contains(left, name) {
				t.Errorf("%s is gone; there are %q", name, left)
			}
		}
	}
	p := n.start()
	want(slices.Concat(theirs, []string{cache, cache + "-cmeta"})...)
	if slices.Contains(n.active(), v.GetId()) {
		t.Error("the volume is active while a component of its cache is in use")
	}
	must.Succeed(t, inUse.Close())
	waittest.Until(t, "the volume has its device", func() bool { return slices.Contains(n.active(), v.GetId()) }, func() any { return n.devices() })
	want(theirs...)
	must.Succeed(t, p.stop())
	slices.Reverse(theirs) // Upper devices first.
	for _, name := range theirs {
		byHand(t, "dmsetup", "remove", name)
	}
	lvmByHand(t, "lvremove", "--yes", "carve/theirs")
	kind.unstack(n, v)
}
