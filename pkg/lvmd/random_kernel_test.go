//go:build kernel

package lvmd_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// checked is a test during one check of a property: what it makes is taken away when
// the check ends.
type checked struct {
	testing.TB
	r *rapid.T
}

func (c checked) Cleanup(f func())                  { c.r.Cleanup(f) }
func (c checked) Context() context.Context          { return c.r.Context() }
func (c checked) Failed() bool                      { return c.r.Failed() }
func (c checked) Error(args ...any)                 { c.r.Error(args...) }
func (c checked) Errorf(format string, args ...any) { c.r.Errorf(format, args...) }
func (c checked) Fatal(args ...any)                 { c.r.Fatal(args...) }
func (c checked) Fatalf(format string, args ...any) { c.r.Fatalf(format, args...) }

func (c checked) TempDir() string {
	dir, err := os.MkdirTemp("", "carve-checked-")
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// TestTheRoomOfRandomMachinesIsWhatLvmdSays makes groups of random disks with random
// classes, and random volumes in them, which it deletes and expands. At the end of
// each history, what lvmd says is what an lvmd says that scans anew, and what LVM
// says, the largest volume of each class fits, and one that is larger does not.
func TestTheRoomOfRandomMachinesIsWhatLvmdSays(t *testing.T) {
	settings := map[string]string{"checks": "2", "shrinktime": "1ns", "nofailfile": "true"}
	if soaking {
		settings["checks"] = "60"
	}
	settings["seed"] = strconv.FormatUint(chance(t).Uint64(), 10)
	for name, value := range settings {
		if err := flag.Set("rapid."+name, value); err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(r *rapid.T) {
		h := newRandomMachine(checked{t, r}, r)
		for range rapid.IntRange(5, 10).Draw(r, "steps") {
			h.step()
		}
		h.checkRoom()
	})
}

// randomMachine is a machine, and what has happened on it.
type randomMachine struct {
	*process
	r       *rapid.T
	classes []string
	// keeps is what the linear class must leave, in bytes.
	keeps   int64
	volumes []*lvmdv1.Volume
	made    int
}

func newRandomMachine(t checked, r *rapid.T) *randomMachine {
	disks := rapid.SliceOfN(rapid.Int64Range(24, 90), 2, 4).Draw(r, "disks in MiB")
	n := newNode(t, spares(t, disks...)...)
	h := &randomMachine{r: r, classes: []string{"linear"}}
	reserve := func(class string) int64 {
		return rapid.SampledFrom([]int64{0, 5, 12}).Draw(r, class+"'s reserve in MiB")
	}
	keeps := reserve("linear")
	h.keeps = keeps << 20
	n.config = fmt.Sprintf("- {name: linear, default: true, volumeGroup: carve, reserve: %dMi}\n", keeps)
	for _, class := range []string{"striped", "raid1"} {
		if rapid.Bool().Draw(r, class) {
			h.classes = append(h.classes, class)
			n.config += layoutClass(class, fmt.Sprintf("reserve: %dMi, ", reserve(class)))
		}
	}
	if rapid.Bool().Draw(r, "thin") {
		h.classes = append(h.classes, "thin")
		n.keeps = []string{"carve-pool"}
		n.config += fmt.Sprintf("- {name: thin, volumeGroup: carve, type: thin, thin: {pool: carve-pool, size: %dMi, overprovisioning: %s}}\n",
			rapid.Int64Range(4, 24).Draw(r, "pool in MiB"), rapid.SampledFrom([]string{"1", "150%", "3"}).Draw(r, "overprovisioning"))
	}
	h.process = n.start()
	return h
}

// step makes, deletes or expands a volume.
func (h *randomMachine) step() {
	what := rapid.SampledFrom([]string{"create", "create", "create", "delete", "delete", "expand"}).Draw(h.r, "step")
	if what == "create" || len(h.volumes) == 0 {
		class := rapid.SampledFrom(h.classes).Draw(h.r, "class")
		h.made++
		h.make(class, fmt.Sprintf("pvc-%d", h.made), rapid.Int64Range(1, 24<<20).Draw(h.r, "bytes"))
		return
	}
	i := rapid.IntRange(0, len(h.volumes)-1).Draw(h.r, "volume")
	v := h.volumes[i]
	if what == "delete" {
		h.delete(v.GetId())
		h.volumes = slices.Delete(h.volumes, i, i+1)
		return
	}
	bytes := v.GetSizeBytes() + rapid.Int64Range(1, 16<<20).Draw(h.r, "bytes more")
	resp, err := h.client.ExpandVolume(h.t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: bytes})
	switch {
	case err == nil:
		h.volumes[i] = resp.GetVolume()
	case status.Code(err) != codes.ResourceExhausted:
		h.r.Fatalf("expanding %v to %d bytes: %v", v, bytes, err)
	}
}

// make makes a raw volume if there is room for it, and fills it.
func (h *randomMachine) make(class, name string, bytes int64) {
	resp, err := h.client.CreateVolume(h.t.Context(), inClass(create(name, bytes, ""), class))
	switch {
	case status.Code(err) == codes.ResourceExhausted:
	case err != nil:
		h.r.Fatalf("creating %d bytes in class %s: %v", bytes, class, err)
	default:
		clean(h.t, resp.GetVolume())
		if class != "thin" { // A full pool is another matter.
			fill(h.t, resp.GetVolume(), 0x5a)
		}
		h.volumes = append(h.volumes, resp.GetVolume())
	}
}

// rooms is what lvmd says of its classes.
func (h *randomMachine) rooms() string {
	var all []string
	for _, c := range h.state().GetClasses() {
		all = append(all, fmt.Sprintf("%s: %d of %d available, at most %d", c.GetName(), c.GetAvailableBytes(), c.GetTotalBytes(), c.GetMaximumVolumeSizeBytes()))
	}
	return strings.Join(all, "; ")
}

// settle waits until what was deleted is gone.
func (h *randomMachine) settle() {
	wait(h.t, "what was deleted is gone", func() bool { return len(h.leftovers()) == len(h.volumes) })
	wait(h.t, "lvmd knows it", func() bool { return h.linear().GetAvailableBytes() == h.free() })
}

func (h *randomMachine) linear() *lvmdv1.DeviceClass { return h.state().GetClasses()[0] }

// free is what LVM says that linear volumes can have.
func (h *randomMachine) free() int64 {
	text := lvmByHand(h.t, "vgs", "--noheadings", "--units", "b", "--nosuffix", "-o", "vg_free,vg_extent_size", h.group)
	var free, extent int64
	if _, err := fmt.Sscan(text, &free, &extent); err != nil {
		h.r.Fatalf("%q: %v", text, err)
	}
	return max(0, free-(h.keeps+extent-1)/extent*extent)
}

func (h *randomMachine) checkRoom() {
	h.settle()
	said := h.rooms()
	h.kill()
	h.process = h.start()
	if again := h.rooms(); again != said {
		h.r.Fatalf("lvmd says %q, and the next one %q", said, again)
	}
	for _, class := range h.classes {
		c := h.classNamed(class)
		most := c.GetMaximumVolumeSizeBytes()
		_, err := h.client.CreateVolume(h.t.Context(), inClass(create("pvc-more", most+c.GetAllocationUnitBytes(), ""), class))
		if status.Code(err) != codes.ResourceExhausted {
			h.r.Fatalf("class %v: a volume that is larger than the maximum: %v", c, err)
		}
		if most == 0 {
			continue
		}
		resp, err := h.client.CreateVolume(h.t.Context(), inClass(create("pvc-most", most, ""), class))
		if err != nil || resp.GetVolume().GetSizeBytes() != most {
			h.r.Fatalf("class %v: the largest volume: %v, error %v", c, resp, err)
		}
		h.delete(resp.GetVolume().GetId())
		h.settle()
		if again := h.rooms(); again != said {
			h.r.Fatalf("lvmd said %q, and after class %s gave and took back the largest volume %q", said, class, again)
		}
	}
}
