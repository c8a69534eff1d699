//go:build kernel

package lvmd_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/waittest"
)

func (n *node) otherGroup(t *testing.T, device string) {
	t.Helper()
	lvmByHand(t, "vgcreate", "--yes", "other", device)
	takeAway(t, func() {
		lvmByHand(t, "vgremove", "--yes", "--force", "--force", "other")
		lvmByHand(t, "pvremove", "--yes", device)
	})
	n.config += "- {name: other, volumeGroup: other}\n"
}

func TestADiskThatHangsHoldsUpNoOtherGroup(t *testing.T) {
	disk := newFaulty(t, "/dev/vdc")
	n := newNode(t)
	n.otherGroup(t, disk.path())
	p := n.start()
	all := p.available()
	byHand(t, "dmsetup", "suspend", "--noflush", "--nolockfs", "--noudevsync", disk.name)
	resume := func() { byHand(t, "dmsetup", "resume", "--noudevsync", disk.name) }
	t.Cleanup(resume)
	// LVM would also wait for the hanging disk if it looked at it.
	only := strings.Replace(handConfig, "devices {", `devices { global_filter=["a|^/dev/vdb$|","r|.*|"]`, 1)
	byHand(t, "lvm", "lvcreate", "--yes", "--size", "8m", "--name", "theirs", "carve", "--config", only)
	waittest.Until(t, "what others did to the other group is noticed", func() bool { return p.available() == all-8<<20 })
	p.delete(p.create(create("pvc-1", 8<<20, "ext4")).GetId())
	waittest.Until(t, "the space is back", func() bool { return p.available() == all-8<<20 })
	resume()
	waittest.Until(t, "the disk's group serves", func() bool {
		v, err := p.client.CreateVolume(t.Context(), inClass(create("pvc-2", 8<<20, ""), "other"))
		if err == nil {
			p.delete(v.GetVolume().GetId())
		}
		return err == nil
	})
	waittest.Until(t, "nothing is left there", func() bool { return strings.TrimSpace(lvmByHand(t, "lvs", "--noheadings", "other")) == "" })
}

func TestACommandThatIsKilledOnAHangingDiskHoldsUpNoOtherGroup(t *testing.T) {
	disk := newFaulty(t, "/dev/vdc")
	n := newNode(t)
	n.otherGroup(t, disk.path())
	n.config += "- {name: beside, volumeGroup: other}\n"
	n.timeout = 15 * time.Second
	p := n.start()
	v := p.create(inClass(create("pvc-kept", 8<<20, ""), "other"))
	fill(t, v, 0x5a)
	n.waitUntagged()
	byHand(t, "dmsetup", "suspend", "--noflush", "--nolockfs", "--noudevsync", disk.name)
	resume := sync.OnceFunc(func() { byHand(t, "dmsetup", "resume", "--noudevsync", disk.name) })
	t.Cleanup(resume)

	hanging := make(chan error, 1)
	go func() {
		_, err := p.client.CreateVolume(t.Context(), inClass(create("pvc-hangs", 8<<20, ""), "other"))
		hanging <- err
	}()
	p.delete(p.create(create("pvc-beside-it", 8<<20, "ext4")).GetId())
	// It ends while the disk hangs, as later ones do.
	if err := <-hanging; !slices.Contains([]codes.Code{codes.DeadlineExceeded, codes.Unavailable}, status.Code(err)) {
		t.Errorf("a creation on the hanging disk: error %v, want DeadlineExceeded or Unavailable", err)
	}
	waittest.Until(t, "the class says so", func() bool { return len(p.classNamed("other").GetConditions()) > 0 })
	if _, err := p.client.CreateVolume(t.Context(), inClass(create("pvc-later", 8<<20, ""), "beside")); status.Code(err) != codes.Unavailable {
		t.Errorf("a later creation in the group: error %v, want Unavailable", err)
	}
	all := p.available()
	p.delete(p.create(create("pvc-after-it", 8<<20, "ext4")).GetId())
	waittest.Until(t, "the space is back", func() bool { return p.available() == all })

	resume()
	for name, class := range map[string]string{"pvc-hangs": "other", "pvc-later": "beside"} {
		waittest.Succeeds(t, "class "+class+" serves again", func() error {
			resp, err := p.client.CreateVolume(t.Context(), inClass(create(name, 8<<20, ""), class))
			if err == nil {
				p.delete(resp.GetVolume().GetId())
			}
			return err
		})
	}
	waittest.Until(t, "the conditions are over", func() bool {
		return len(p.classNamed("other").GetConditions()) == 0 && p.conditions() == "" && p.serving()
	})
	checkFilled(t, v, 0x5a, 8<<20)
	p.delete(v.GetId())
	waittest.Until(t, "nothing is left there", func() bool { return strings.TrimSpace(lvmByHand(t, "lvs", "--noheadings", "other")) == "" })
}

func TestADiskThatHangsAtTheStartHoldsUpNoOtherGroup(t *testing.T) {
	disk := newFaulty(t, "/dev/vdc")
	n := newNode(t)
	n.otherGroup(t, disk.path())
	p := n.start()
	v := p.create(inClass(create("pvc-other", 8<<20, ""), "other"))
	fill(t, v, 0x5a)
	p.kill()
	lvmByHand(t, "vgchange", "--activate", "n", "other") // as after a reboot
	byHand(t, "dmsetup", "suspend", "--noflush", "--nolockfs", "--noudevsync", disk.name)
	resume := func() { byHand(t, "dmsetup", "resume", "--noudevsync", disk.name) }
	t.Cleanup(resume)

	p = n.start()
	if c := p.classNamed("other"); c.GetAvailableBytes() != 0 || len(c.GetConditions()) == 0 {
		t.Errorf("the class of the hanging disk's group is %v, want no free space and a condition", c)
	}
	p.delete(p.create(create("pvc-local", 8<<20, "ext4")).GetId())

	resume()
	var resp *lvmdv1.GetVolumeResponse
	waittest.Until(t, "the volume has its device", func() bool {
		var err error
		resp, err = p.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Id: v.GetId()})
		return err == nil && resp.GetVolume().GetDevicePath() != "" && len(resp.GetVolume().GetConditions()) == 0
	})
	checkFilled(t, resp.GetVolume(), 0x5a, 8<<20)
	p.delete(v.GetId())
	waittest.Until(t, "nothing is left", func() bool { return strings.TrimSpace(lvmByHand(t, "lvs", "--noheadings", "other")) == "" })
}
