//go:build kernel

package lvmd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/rapidtest"
	"github.com/carve-csi/carve/pkg/waittest"
)

// checked runs cleanups when one check of a property ends.
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
	dir := must.Get(os.MkdirTemp("", "carve-checked-"))(c)
	c.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// An administrator changes the group by hand while lvmd runs, and a disk fails for a while. In
// the end lvmd must report the same as a freshly scanning lvmd and as LVM, and each class must
// give exactly the reported space, to the last extent.
func TestTheFreeSpaceOfRandomMachinesIsWhatLvmdSays(t *testing.T) {
	settings := map[string]string{"checks": "1", "shrinktime": "1ns", "nofailfile": "true", "seed": "1"}
	if soaking || os.Getenv("CARVE_SEED") != "" {
		settings["seed"] = strconv.FormatUint(max(1, chance(t).Uint64()), 10)
	}
	if soaking {
		settings["checks"] = "20"
	}
	rapidtest.Set(t, settings)
	happened := map[string]int{}
	rapid.Check(t, func(r *rapid.T) {
		h := newRandomMachine(checked{t, r}, r)
		h.happened = happened
		for _, class := range h.classes {
			h.create(class)
		}
		for range rapid.IntRange(4, 8).Draw(r, "steps") {
			h.step()
		}
		h.create("linear") // which can be moved
		for range rapid.IntRange(5, 6).Draw(r, "an administrator's changes") {
			h.administer()
		}
		h.checkVolumes()
		h.loseDisk()
		h.checkFreeSpace()
	})
	t.Logf("what happened, and how often: %v", happened)
	if !soaking && os.Getenv("CARVE_SEED") != "" {
		return // A single history of that seed need not do everything.
	}
	want := []string{"lvcreate", "lvextend", "lvremove", "vgextend", "a RAID volume was degraded"}
	if soaking { // A history may lack free extents to move a volume to.
		want = append(want, "pvmove")
	}
	for _, class := range append([]string{"thin"}, layoutNames...) {
		want = append(want, "a volume in "+class, "class "+class+" was filled")
	}
	for _, what := range want {
		if happened[what] == 0 && !t.Failed() {
			t.Errorf("never happened: %s", what)
		}
	}
}

type randomMachine struct {
	*process
	r       *rapid.T
	classes []string
	// keeps is the linear class's reserve, in bytes.
	keeps   int64
	volumes []randomVolume
	made    int
	admins  []string
	// faulty is the disk that may fail, spare one outside any group, or empty.
	disks  []string
	faulty *faulty
	spare  string
	// reserves are the classes' reserves, in MiB.
	reserves map[string]int64
	happened map[string]int
}

// randomVolume holds 0x5a in its first filled bytes.
type randomVolume struct {
	*lvmdv1.Volume
	filled int64
}

// newRandomMachine makes the disk that may fail a large one: volumes of five parts use the
// disks with the most free space, and so mostly that one.
func newRandomMachine(t checked, r *rapid.T) *randomMachine {
	sizes := rapid.SliceOfN(rapid.Int64Range(52, 72), 4, 4).Draw(r, "disks in MiB")
	devices := spares(t, append([]int64{80, 24, 88}, sizes...)...)
	h := &randomMachine{r: r, classes: append([]string{"thin"}, layoutNames...), faulty: newFaulty(t, devices[0]), spare: devices[1]}
	h.disks = append([]string{h.faulty.path()}, devices[2:]...)
	n := newNode(t, h.disks...)
	t.Cleanup(h.faulty.work)
	h.reserves = map[string]int64{"raid6": 8}
	reserve := func(class string) int64 {
		h.reserves[class] = rapid.SampledFrom([]int64{0, 5, 12}).Draw(r, class+"'s reserve in MiB")
		return h.reserves[class]
	}
	keeps := reserve("linear")
	h.keeps = keeps << 20
	n.config = fmt.Sprintf("- {name: linear, default: true, volumeGroup: carve, reserve: %dMi}\n", keeps)
	for _, class := range layoutNames[1:] {
		if class == "raid6" { // which reports its own reserve
			n.config += layoutClass(class, "")
			continue
		}
		n.config += layoutClass(class, fmt.Sprintf("reserve: %dMi, ", reserve(class)))
	}
	n.keeps = []string{"carve-pool"}
	n.config += fmt.Sprintf("- {name: thin, volumeGroup: carve, type: thin, thin: {pool: carve-pool, size: %dMi, overprovisioning: %s}}\n",
		rapid.Int64Range(4, 16).Draw(r, "pool in MiB"), rapid.SampledFrom([]string{"1", "150%", "3"}).Draw(r, "overprovisioning"))
	h.process = n.start()
	return h
}

func (h *randomMachine) step() {
	what := rapid.SampledFrom([]string{"create", "create", "delete", "delete", "expand"}).Draw(h.r, "step")
	if what == "create" || len(h.volumes) == 0 {
		h.create(rapid.SampledFrom(h.classes).Draw(h.r, "class"))
		return
	}
	i := rapid.IntRange(0, len(h.volumes)-1).Draw(h.r, "volume")
	v := h.volumes[i]
	if what == "delete" {
		h.delete(v.GetId())
		h.volumes = slices.Delete(h.volumes, i, i+1)
		return
	}
	bytes := v.GetSizeBytes() + rapid.Int64Range(1, 8<<20).Draw(h.r, "bytes more")
	resp, err := h.client.ExpandVolume(h.t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: bytes})
	switch {
	case err == nil:
		h.volumes[i].Volume = resp.GetVolume()
	case status.Code(err) != codes.ResourceExhausted && status.Code(err) != codes.OutOfRange:
		h.r.Fatalf("expanding %v to %d bytes: %v", v, bytes, err)
	}
}

func (h *randomMachine) create(class string) {
	h.made++
	bytes := rapid.Int64Range(1, 8<<20).Draw(h.r, "bytes")
	resp, err := h.client.CreateVolume(h.t.Context(), inClass(create(fmt.Sprintf("pvc-%d", h.made), bytes, ""), class))
	switch {
	case status.Code(err) == codes.ResourceExhausted:
	case err != nil:
		h.r.Fatalf("creating %d bytes in class %s: %v", bytes, class, err)
	default:
		v := randomVolume{Volume: resp.GetVolume()}
		Map(h.t, v.Volume)
		if class != "thin" { // A full pool fails differently.
			fill(h.t, v.Volume, 0x5a)
			v.filled = v.GetSizeBytes()
		}
		h.volumes = append(h.volumes, v)
		h.happened["a volume in "+class]++
	}
}

func (h *randomMachine) administer() {
	h.finish() // Volumes being deleted must not be moved.
	can := map[string]bool{
		"lvcreate": h.freeExtents() > 0, "lvextend": len(h.admins) > 0 && h.freeExtents() > 0, "lvremove": len(h.admins) > 0,
		"vgextend": h.spare != "", "pvmove": h.movable() != "",
	}
	// Prefer the rarest changes, so that all of them happen.
	changes := slices.DeleteFunc([]string{"lvcreate", "vgextend", "pvmove", "lvextend", "lvremove"}, func(c string) bool { return !can[c] })
	if len(changes) == 0 {
		return
	}
	slices.SortStableFunc(changes, func(a, b string) int { return h.happened[a] - h.happened[b] })
	change := changes[0]
	h.happened[change]++
	switch change {
	case "lvcreate":
		h.made++
		name := fmt.Sprintf("admins-%d", h.made)
		lvmByHand(h.t, "lvcreate", "--yes", "--zero=n", "--wipesignatures=n", "--extents", h.someExtents(), "--name", name, h.group)
		h.admins = append(h.admins, name)
		// The next volume on these extents must not show it.
		overwriteDevice(h.t, "/dev/"+h.group+"/"+name, 0x77)
	case "lvextend":
		lvmByHand(h.t, "lvextend", "--extents", "+"+h.someExtents(), h.group+"/"+h.admins[0])
	case "lvremove":
		lvmByHand(h.t, "lvremove", "--yes", h.group+"/"+h.admins[0])
		h.admins = h.admins[1:]
	case "vgextend":
		lvmByHand(h.t, "vgextend", "--yes", h.group, h.spare)
		h.disks, h.spare = append(h.disks, h.spare), ""
	case "pvmove":
		source, name, _ := strings.Cut(h.movable(), " ")
		lvmByHand(h.t, "pvmove", "--interval", "1", "--name", name, source)
		// The same space is free, on other disks.
		waittest.Until(h.t, "lvmd knows what is free on each disk", func() bool {
			for class := range inRows {
				if _, largest := h.inRow(class); h.classNamed(class).GetMaximumVolumeSizeBytes() != largest {
					return false
				}
			}
			return true
		}, func() any { return h.state() })
	}
	h.finish()
}

func (h *randomMachine) freeExtents() (n int64) {
	text := lvmByHand(h.t, "vgs", "--noheadings", "-o", "vg_free_count", h.group)
	if _, err := fmt.Sscan(text, &n); err != nil {
		h.r.Fatalf("%q: %v", text, err)
	}
	return n
}

func (h *randomMachine) someExtents() string {
	return strconv.FormatInt(rapid.Int64Range(1, min(3, h.freeExtents())).Draw(h.r, "extents"), 10)
}

// movable returns a disk and a linear volume on it that fits on one of the other disks, or "".
func (h *randomMachine) movable() string {
	free := map[string]int64{}
	for line := range strings.Lines(lvmByHand(h.t, "pvs", "--noheadings", "--separator", " ", "-o", "pv_name,pv_pe_count,pv_pe_alloc_count", "--select", "vg_name="+h.group)) {
		var device string
		var all, used int64
		if _, err := fmt.Sscan(line, &device, &all, &used); err != nil {
			h.r.Fatalf("%q: %v", line, err)
		}
		free[device] = all - used
	}
	needs := map[string]int64{} // extents by disk and volume
	for line := range strings.Lines(lvmByHand(h.t, "lvs", "--noheadings", "--separator", " ", "--segments", "-o", "lv_name,segtype,seg_size_pe,devices", h.group)) {
		words := strings.Fields(line)
		if len(words) != 4 || words[1] != "linear" || slices.Contains(h.admins, words[0]) {
			continue
		}
		extents, err := strconv.ParseInt(words[2], 10, 64)
		if err != nil {
			h.r.Fatalf("%q: %v", line, err)
		}
		device, _, _ := strings.Cut(words[3], "(")
		needs[device+" "+words[0]] += extents
	}
	for _, what := range slices.Sorted(maps.Keys(needs)) {
		device, _, _ := strings.Cut(what, " ")
		for other, n := range free {
			if other != device && n >= needs[what] {
				return what
			}
		}
	}
	return ""
}

func overwriteDevice(t testing.TB, path string, pattern byte) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	size, err := f.Seek(0, io.SeekEnd)
	must.Succeed(t, errors.Join(err, f.Close()))
	fill(t, &lvmdv1.Volume{DevicePath: path, SizeBytes: size}, pattern)
}

// checkVolumes reads the volumes that are redundant or have no condition.
func (h *randomMachine) checkVolumes() {
	for _, v := range h.volumes {
		resp, err := h.client.GetVolume(h.t.Context(), &lvmdv1.GetVolumeRequest{Id: v.GetId()})
		got := resp.GetVolume()
		if err != nil || got.GetId() != v.GetId() || got.GetSizeBytes() != v.GetSizeBytes() {
			h.r.Fatalf("volume %v is %v, error %v", v.Volume, got, err)
		}
		if redundant := strings.HasPrefix(v.GetDeviceClass(), "raid"); !redundant && len(got.GetConditions()) > 0 {
			continue
		}
		if got.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY {
			h.r.Fatalf("volume %v is %v", v.Volume, got)
		}
		checkFilled(h.t, got, 0x5a, v.filled)
	}
}

func (h *randomMachine) loseDisk() {
	if !h.isRAIDOnLostDisk() {
		h.create("raid6")
	}
	waittest.Until(h.t, "all images are in sync", func() bool { return h.conditions() == "" })
	h.finish()
	h.waitUntagged()
	before, isDegraded := h.freeSpace(), h.isRAIDOnLostDisk()
	h.faulty.fail()
	must.Succeed(h.r, os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0))
	waittest.Until(h.t, "all classes have a condition and no free space", func() bool {
		return !slices.ContainsFunc(h.state().GetClasses(), func(c *lvmdv1.DeviceClass) bool {
			return c.GetName() != "thin" && (len(c.GetConditions()) == 0 || c.GetAvailableBytes() > 0)
		})
	})
	_, err := h.client.CreateVolume(h.t.Context(), create("pvc-refused", 1, ""))
	if status.Code(err) != codes.Unavailable {
		h.r.Fatalf("a creation while a disk is lost: %v", err)
	}
	h.checkVolumes() // Redundant volumes are intact, and reading makes the kernel notice the loss.
	if isDegraded {
		waittest.Until(h.t, "a RAID volume is degraded", func() bool { return strings.Contains(h.conditions(), "Degraded") },
			func() any { return h.state() }, func() any { return byHand(h.t, "dmsetup", "status") })
		h.happened["a RAID volume was degraded"]++
	}
	h.kill()
	h.process = h.start()
	h.checkVolumes()
	h.faulty.work()
	for _, v := range h.volumes {
		lvmByHand(h.t, "lvchange", "--refresh", h.group+"/"+v.GetId())
	}
	waittest.Until(h.t, "all is well again", func() bool {
		return h.conditions() == "" && !slices.ContainsFunc(h.state().GetClasses(), func(c *lvmdv1.DeviceClass) bool { return len(c.GetConditions()) > 0 })
	}, func() any { return h.state() }, func() any { return byHand(h.t, "dmsetup", "status") }, func() any { return byHand(h.t, "dmesg") })
	waittest.Until(h.t, "there is as much space as before: "+before, func() bool { return h.freeSpace() == before }, func() any { return h.freeSpace() })
	h.checkVolumes()
}

func (h *randomMachine) isRAIDOnLostDisk() bool {
	for line := range strings.Lines(lvmByHand(h.t, "lvs", "--all", "--noheadings", "--segments", "-o", "lv_name,devices", h.group)) {
		if strings.Contains(line, "_rimage_") && strings.Contains(line, " "+h.faulty.path()+"(") {
			return true
		}
	}
	return false
}

func (h *randomMachine) freeSpace() string {
	var all []string
	for _, c := range h.state().GetClasses() {
		all = append(all, fmt.Sprintf("%s: %d of %d available, at most %d", c.GetName(), c.GetAvailableBytes(), c.GetTotalBytes(), c.GetMaximumVolumeSizeBytes()))
	}
	return strings.Join(all, "; ")
}

func (h *randomMachine) finish() {
	h.t.Helper()
	waittest.Until(h.t, "what was deleted is gone", func() bool { return len(h.leftovers()) == len(h.volumes)+len(h.admins) })
	waittest.Until(h.t, "lvmd knows it", func() bool { return h.linear().GetAvailableBytes() == h.free() }, func() any { return h.state() })
}

func (h *randomMachine) linear() *lvmdv1.DeviceClass { return h.state().GetClasses()[0] }

// free is the space for linear volumes in LVM.
func (h *randomMachine) free() int64 {
	text := lvmByHand(h.t, "vgs", "--noheadings", "--units", "b", "--nosuffix", "-o", "vg_free,vg_extent_size", h.group)
	var free, extent int64
	if _, err := fmt.Sscan(text, &free, &extent); err != nil {
		h.r.Fatalf("%q: %v", text, err)
	}
	return max(0, free-(h.keeps+extent-1)/extent*extent)
}

func (h *randomMachine) checkFreeSpace() {
	h.finish()
	said := h.freeSpace()
	h.kill()
	h.process = h.start()
	if again := h.freeSpace(); again != said {
		h.r.Fatalf("lvmd says %q, and the next one %q", said, again)
	}
	for _, class := range h.classes {
		for _, v := range h.fillClass(class) {
			h.delete(v.GetId())
		}
		h.finish()
		if again := h.freeSpace(); again != said {
			h.r.Fatalf("lvmd said %q, and after class %s gave and took back all it has %q", said, class, again)
		}
	}
}

// inRows are the classes whose volumes span several disks.
var inRows = map[string]layout.Layout{
	"striped": {Type: layout.Striped, Stripes: 2},
	"raid1":   {Type: layout.RAID1, Mirrors: 1},
	"raid10":  {Type: layout.RAID10, Stripes: 2, Mirrors: 1},
	"raid5":   {Type: layout.RAID5, Stripes: 2},
	"raid6":   {Type: layout.RAID6, Stripes: 3},
}

// inRow computes the values from LVM's free space on each disk.
func (h *randomMachine) inRow(class string) (available, largest int64) {
	const extent = 4 << 20
	var free []int64
	for _, text := range strings.Fields(lvmByHand(h.t, "pvs", "--noheadings", "--units", "b", "--nosuffix", "-o", "pv_free", "--select", "vg_name="+h.group)) {
		free = append(free, must.Get(strconv.ParseInt(text, 10, 64))(h.t)/extent)
	}
	reserve := (h.reserves[class]<<20 + extent - 1) / extent
	return inRows[class].Available(free, reserve) * extent, inRows[class].Largest(free, reserve) * extent
}

func (h *randomMachine) sizeOf(class string) (sum int64) {
	for _, v := range h.volumes {
		if v.GetDeviceClass() == class {
			sum += v.GetSizeBytes()
		}
	}
	return sum
}

// fillClass wants one unit more than the maximum to be rejected each time.
func (h *randomMachine) fillClass(class string) (filled []*lvmdv1.Volume) {
	c := h.classNamed(class)
	unit := c.GetAllocationUnitBytes()
	said, first, sum := c.GetAvailableBytes(), c.GetMaximumVolumeSizeBytes(), int64(0)
	if _, ok := inRows[class]; ok && first > 0 {
		if available, largest := h.inRow(class); said != available || first != largest {
			h.r.Fatalf("class %v: by LVM, %d bytes are available, and %d in one volume", c, available, largest)
		}
	}
	// A thin pool's limit on the sum applies only if it is below what fits under the threshold.
	inSum := c.GetTotalBytes() - h.sizeOf(class)
	bySum := class != "thin" || said == inSum
	exact := bySum && (class == "linear" || class == "thin" || class == "striped")
	for {
		available, most := c.GetAvailableBytes(), c.GetMaximumVolumeSizeBytes()
		_, err := h.client.CreateVolume(h.t.Context(), inClass(create("pvc-more", most+unit, ""), class))
		if status.Code(err) != codes.ResourceExhausted {
			h.r.Fatalf("class %v: a volume that is larger than the maximum: %v", c, err)
		}
		if most == 0 {
			break
		}
		size := most
		if class == "striped" {
			// Only small volumes, each on the freest disks, can use all of it.
			size = unit
		}
		resp, err := h.client.CreateVolume(h.t.Context(), inClass(create(fmt.Sprintf("pvc-%s-%d", class, len(filled)), size, ""), class))
		v := resp.GetVolume()
		if err != nil || v.GetSizeBytes() != size {
			h.r.Fatalf("class %v: a volume of %d bytes: %v, error %v", c, size, resp, err)
		}
		filled, sum = append(filled, v), sum+size
		waittest.Until(h.t, "lvmd says what the volume took", func() bool {
			c = h.classNamed(class)
			return c.GetAvailableBytes() <= available-size || !bySum && c.GetAvailableBytes() <= inSum-sum
		}, func() any { return h.state() })
		if exact && c.GetAvailableBytes() != available-size {
			h.r.Fatalf("%d bytes were available, and %d after a volume of %d bytes", available, c.GetAvailableBytes(), size)
		}
	}
	if c.GetAvailableBytes() != 0 || bySum && sum > said || !bySum && sum > inSum || sum < first || exact && sum != said {
		h.r.Fatalf("class %v: volumes of %d bytes in sum were made of %d that were available, in one volume %d", c, sum, said, first)
	}
	if said > 0 {
		h.happened["class "+class+" was filled"]++
	}
	return filled
}
