//go:build kernel

package lvmd_test

import (
	"os/exec"
	"slices"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/waittest"
)

// A deleted volume stops answering on one of a group's two disks. Of two more deleted volumes,
// one on each disk, lvmd must wipe and remove the one on the other disk.
func TestAWipeThatHangsInTheKernelHoldsUpNoneOnAnotherDisk(t *testing.T) {
	disks := []string{"/dev/vdb", "/dev/vdc"}
	n := newNode(t, disks...)
	p := n.start()
	all := p.available()
	on := func(disk int, name string, size int64) *lvmdv1.Volume {
		other := disks[1-disk]
		before := p.available()
		lvmByHand(t, "pvchange", "--allocatable", "n", other)
		waittest.Until(t, "lvmd knows that a disk gives nothing", func() bool { return p.available() < before })
		v := p.create(create(name, size, ""))
		lvmByHand(t, "pvchange", "--allocatable", "y", other)
		waittest.Until(t, "lvmd knows that it does", func() bool { return p.available() == before-size })
		return v
	}
	stuck := on(0, "stuck", 16<<20)
	behind := on(0, "behind", 32<<20)
	free := on(1, "free", 48<<20)
	device := "carve-" + stuck.GetId()
	byHand(t, "dmsetup", "suspend", "--noflush", "--nolockfs", "--noudevsync", device)
	t.Cleanup(func() { _ = exec.Command("dmsetup", "resume", "--noudevsync", device).Run() })
	// lvmd wipes the smallest first.
	for _, v := range []*lvmdv1.Volume{stuck, behind, free} {
		p.delete(v.GetId())
	}
	waiting := []string{stuck.GetId(), behind.GetId()}
	slices.Sort(waiting)
	waittest.Until(t, "what lies on the other disk is removed", func() bool { return slices.Equal(n.active(), waiting) }, func() any { return n.active() })
	byHand(t, "dmsetup", "resume", "--noudevsync", device)
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 && p.available() == all }, func() any { return n.leftovers() })
}
