//go:build kernel && virtual

package lvmd_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// pull unbinds a disk's driver and returns a function that binds it again, which also runs at
// the test's end.
func pull(t *testing.T, disk string) (putBack func()) {
	t.Helper()
	const driver = "/sys/bus/virtio/drivers/virtio_blk/"
	link := must.Get(filepath.EvalSymlinks("/sys/block/" + filepath.Base(disk) + "/device"))(t)
	device := []byte(filepath.Base(link))
	must.Succeed(t, os.WriteFile(driver+"unbind", device, 0))
	putBack = func() {
		t.Helper()
		if _, err := os.Stat(disk); err == nil {
			return
		}
		must.Succeed(t, os.WriteFile(driver+"bind", device, 0))
		waittest.Until(t, disk+" is there again", func() bool {
			_, err := os.Stat(disk)
			return err == nil
		})
	}
	t.Cleanup(putBack)
	waittest.Until(t, disk+" is gone", func() bool {
		_, err := os.Stat(disk)
		return errors.Is(err, os.ErrNotExist)
	})
	return putBack
}

func TestADiskThatIsPulledIsReportedAndOthersServe(t *testing.T) {
	n := newNode(t)
	n.otherGroup(t, "/dev/vdc")
	p := n.start()
	v := p.create(inClass(create("pvc-other", 8<<20, ""), "other"))
	fill(t, v, 0x5a)
	free := p.classNamed("other").GetAvailableBytes()

	putBack := pull(t, "/dev/vdc")
	waittest.Until(t, "the class has no free space and a condition", func() bool {
		c := p.classNamed("other")
		return c.GetAvailableBytes() == 0 && len(c.GetConditions()) > 0
	})
	_, err := p.client.CreateVolume(t.Context(), inClass(create("pvc-more", 8<<20, ""), "other"))
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a create there: %v", err)
	}
	resp, err := p.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Id: v.GetId()})
	if err != nil || len(resp.GetVolume().GetConditions()) == 0 {
		t.Errorf("its volume is %v, error %v", resp, err)
	}
	local := p.create(create("pvc-local", 8<<20, "ext4"))
	p.delete(local.GetId())

	// The kernel still maps a disk that is gone.
	byHand(t, "dmsetup", "remove", "--retry", "other-"+v.GetId())
	putBack()
	waittest.Until(t, "the class is well", func() bool {
		c := p.classNamed("other")
		return c.GetAvailableBytes() == free && len(c.GetConditions()) == 0
	})
	waittest.Until(t, "the volume has its device again", func() bool {
		resp, err = p.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Id: v.GetId()})
		return err == nil && len(resp.GetVolume().GetConditions()) == 0
	})
	checkFilled(t, resp.GetVolume(), 0x5a, 8<<20)
	p.delete(v.GetId())
	waittest.Until(t, "nothing is left", func() bool { return strings.TrimSpace(lvmByHand(t, "lvs", "--noheadings", "other")) == "" })
}

func TestADiskThatIsLateAtTheStartHoldsUpNoOtherGroup(t *testing.T) {
	n := newNode(t)
	n.otherGroup(t, "/dev/vdc")
	p := n.start()
	v := p.create(inClass(create("pvc-other", 8<<20, ""), "other"))
	fill(t, v, 0x5a)
	p.kill()
	lvmByHand(t, "vgchange", "--activate", "n", "other") // as after a reboot
	putBack := pull(t, "/dev/vdc")

	p = n.start()
	if c := p.classNamed("other"); c.GetAvailableBytes() != 0 || len(c.GetConditions()) == 0 {
		t.Errorf("the class of the group that is not there is %v, want no free space and a condition", c)
	}
	p.delete(p.create(create("pvc-local", 8<<20, "ext4")).GetId())

	putBack()
	var resp *lvmdv1.GetVolumeResponse
	waittest.Until(t, "the volume has its device again", func() (well bool) {
		var err error
		resp, err = p.client.GetVolume(t.Context(), &lvmdv1.GetVolumeRequest{Id: v.GetId()})
		return err == nil && len(resp.GetVolume().GetConditions()) == 0
	})
	checkFilled(t, resp.GetVolume(), 0x5a, 8<<20)
	p.delete(v.GetId())
	waittest.Until(t, "nothing is left", func() bool { return strings.TrimSpace(lvmByHand(t, "lvs", "--noheadings", "other")) == "" })
}
