//go:build kernel

package lvmd_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/api/conditions"
	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

var layouts = map[string]string{
	"linear":  "volumeGroup: carve",
	"striped": "volumeGroup: carve, type: striped, stripes: 2, lvcreateOptions: [--readahead=none]",
	"raid1":   "volumeGroup: carve, type: raid1, lvcreateOptions: [--regionsize=1m]",
	"raid10":  "volumeGroup: carve, type: raid10, stripes: 2",
	"raid5":   "volumeGroup: carve, type: raid5, stripes: 2",
	"raid6":   "volumeGroup: carve, type: raid6, stripes: 3, reserve: 8Mi",
}

var layoutNames = []string{"linear", "striped", "raid1", "raid10", "raid5", "raid6"}

func layoutClass(name, settings string) string {
	return "- {name: " + name + ", " + settings + layouts[name] + "}\n"
}

func layoutClasses() string {
	all := layoutClass("linear", "default: true, ")
	for _, name := range layoutNames[1:] {
		all += layoutClass(name, "")
	}
	return all
}

// spares makes loop devices over files in memory, with sizes in MiB.
func spares(t testing.TB, sizes ...int64) []string {
	t.Helper()
	var devices []string
	for i, size := range sizes {
		file := filepath.Join(t.TempDir(), fmt.Sprintf("disk%d", i))
		f := must.Get(os.Create(file))(t)
		must.Succeed(t, f.Truncate(size<<20))
		f.Close()
		device := strings.TrimSpace(byHand(t, "losetup", "--find", "--show", file))
		t.Cleanup(func() { byHand(t, "losetup", "--detach", device) })
		devices = append(devices, device)
	}
	return devices
}

func (p *process) classNamed(name string) *lvmdv1.DeviceClass {
	p.t.Helper()
	for _, c := range p.state().GetClasses() {
		if c.GetName() == name {
			return c
		}
	}
	p.t.Fatalf("class %s is not offered", name)
	return nil
}

func inClass(r *lvmdv1.CreateVolumeRequest, class string) *lvmdv1.CreateVolumeRequest {
	r.DeviceClass = class
	return r
}

func TestEveryLayoutServesItsVolumesAndTheLargestFits(t *testing.T) {
	n := newNode(t, spares(t, 60, 52, 64, 72, 56)...)
	n.config = layoutClasses()
	p := n.start()
	all := p.available()
	for _, class := range layoutNames[1:] { // linear ones have tests of their own
		t.Run(class, func(t *testing.T) {
			v := p.create(inClass(create("pvc-"+class, 20<<20, "ext4"), class))
			dir, unmount := mount(t, v)
			file := filepath.Join(dir, "data")
			must.Succeed(t, os.WriteFile(file, []byte("kept"), 0o600))
			resp, err := p.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 30 << 20})
			if err != nil || resp.GetVolume().GetSizeBytes() < 30<<20 {
				t.Errorf("%v, error %v", resp, err)
			}
			if b, err := os.ReadFile(file); err != nil || string(b) != "kept" {
				t.Errorf("%q, error %v", b, err)
			}
			unmount()
			c := p.classNamed(class)
			most, unit := c.GetMaximumVolumeSizeBytes(), c.GetAllocationUnitBytes()
			_, err = p.client.CreateVolume(t.Context(), inClass(create("pvc-more", most+1, "ext4"), class))
			if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("more than the maximum: %v", err)
			}
			largest := p.create(inClass(create("pvc-most", most, "ext4"), class))
			if largest.GetSizeBytes() != most || most%unit != 0 || most == 0 {
				t.Errorf("%d bytes, maximum %d, unit %d", largest.GetSizeBytes(), most, unit)
			}
			p.delete(largest.GetId())
			p.delete(v.GetId())
			waittest.Until(t, "the space is back", func() bool { return p.available() == all })
		})
	}
	if left := n.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// The nodes are like one that gets disks while it has volumes.
func TestStripesLieOnAllDevices(t *testing.T) {
	const extent = 4 << 20
	devices := spares(t, 60, 52, 64, 72)
	n := newNode(t, devices[0])
	n.config = "- {name: all, default: true, volumeGroup: carve, type: striped, stripes: all}\n"
	p := n.start()
	counts := func(stripes int64) {
		t.Helper()
		waittest.Until(t, fmt.Sprintf("the class has %d stripes", stripes), func() bool {
			return p.classNamed("all").GetAllocationUnitBytes() == stripes*extent
		}, func() any { return p.classNamed("all") })
	}
	largestFits := func() {
		t.Helper()
		all, most := p.available(), p.classNamed("all").GetMaximumVolumeSizeBytes()
		if _, err := p.client.CreateVolume(t.Context(), create("pvc-more", most+1, "ext4")); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("more than the maximum, %d: %v", most, err)
		}
		v := p.create(create("pvc-most", most, "ext4"))
		if v.GetSizeBytes() != most {
			t.Errorf("%d bytes, want %d", v.GetSizeBytes(), most)
		}
		p.delete(v.GetId())
		waittest.Until(t, "the space is back", func() bool { return p.available() == all })
	}
	made := map[string]string{}
	check := func() {
		t.Helper()
		for id, want := range made {
			if got := n.segmentsOf(id); got != want {
				t.Errorf("volume %s is %q, want %q", id, got, want)
			}
		}
	}
	had := 1
	for _, c := range []struct {
		devices int
		want    string
	}{{1, "linear 1"}, {2, "striped 2"}, {4, "striped 4"}} {
		if c.devices > had {
			lvmByHand(t, append([]string{"vgextend", "--yes", "carve"}, devices[had:c.devices]...)...)
		}
		had = c.devices
		counts(int64(c.devices))
		largestFits()
		made[p.create(create(fmt.Sprintf("pvc-%d", c.devices), 20<<20, "ext4")).GetId()] = c.want
		check()
	}
	for id := range made {
		if _, err := p.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: id, RequiredBytes: 40 << 20}); err != nil {
			t.Error(err)
		}
	}
	check()
	lvmByHand(t, "pvchange", "--allocatable", "n", devices[3])
	counts(3)
	largestFits()
	made[p.create(create("pvc-3", 12<<20, "")).GetId()] = "striped 3"
	check()
	for id := range made {
		p.delete(id)
	}
	waittest.Until(t, "all are gone", func() bool { return len(n.leftovers()) == 0 })
}

func TestAClassThatDoesNotFitItsGroupStopsNoOther(t *testing.T) {
	n := newNode(t, "/dev/vdb")
	devices := spares(t, 64, 64)
	lvmByHand(t, append([]string{"vgcreate", "--yes", "--physicalextentsize", "256k", "small"}, devices...)...)
	takeAway(t, func() {
		lvmByHand(t, "vgremove", "--yes", "--force", "small")
		lvmByHand(t, append([]string{"pvremove", "--yes"}, devices...)...)
	})
	n.config += "- {name: safe, volumeGroup: small, type: raid1}\n"
	p := n.start()
	c := p.classNamed("safe")
	if len(c.GetConditions()) != 1 || c.GetConditions()[0].GetType() != conditions.VolumeGroupUnfit || c.GetAvailableBytes() != 0 {
		t.Errorf("class %v, want %s and no free space", c, conditions.VolumeGroupUnfit)
	}
	_, err := p.client.CreateVolume(t.Context(), inClass(create("pvc-safe", 8<<20, "ext4"), "safe"))
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "less than 512 KiB") {
		t.Errorf("a volume in the class: %v", err)
	}
	v := p.create(create("pvc-plain", 8<<20, "ext4"))
	lvmByHand(t, "vgchange", "--physicalextentsize", "1m", "small")
	waittest.Until(t, "the class can be used", func() bool {
		c = p.classNamed("safe")
		return len(c.GetConditions()) == 0 && c.GetAvailableBytes() > 0
	}, func() any { return c })
	safe := p.create(inClass(create("pvc-safe", 8<<20, "ext4"), "safe"))
	p.delete(safe.GetId())
	p.delete(v.GetId())
	waittest.Until(t, "both are gone", func() bool {
		return len(n.leftovers()) == 0 && strings.TrimSpace(lvmByHand(t, "lvs", "--noheadings", "small")) == ""
	})
}

// leg starts within the disk, so that LVM does not see two devices with the same contents.
func leg(t *testing.T, disk string) (path string, fail, work func()) {
	t.Helper()
	const name, sectors = "carve-faulty-leg", "94208"
	works := "linear " + disk + " 4096"
	byHand(t, "dmsetup", "create", name, "--noudevsync", "--table", "0 "+sectors+" "+works)
	t.Cleanup(func() { byHand(t, "dmsetup", "remove", "--noudevsync", "--retry", name) })
	set := func(target string) {
		byHand(t, "dmsetup", "suspend", "--noflush", "--nolockfs", "--noudevsync", name)
		byHand(t, "dmsetup", "load", name, "--table", "0 "+sectors+" "+target)
		byHand(t, "dmsetup", "resume", "--noudevsync", name)
	}
	return "/dev/mapper/" + name, func() { set("error") }, func() { set(works) }
}

func (p *process) conditions() string {
	p.t.Helper()
	var all []string
	for _, v := range p.state().GetVolumes() {
		for _, c := range v.GetConditions() {
			all = append(all, c.GetType())
		}
	}
	return strings.Join(all, " ")
}

// overwrite is durable when it returns.
func overwrite(t *testing.T, file, contents string) {
	t.Helper()
	f := must.Get(os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_SYNC, 0o600))(t)
	if _, err := f.WriteString(contents); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

func TestARAIDVolumeOutlivesADisk(t *testing.T) {
	devices := spares(t, 48, 48, 48)
	faulty, fail, work := leg(t, devices[0])
	n := newNode(t, faulty, devices[1], devices[2])
	n.config = "- {name: raid5, default: true, volumeGroup: carve, type: raid5, stripes: 2}\n"
	p := n.start()
	v := p.create(create("pvc-1", 24<<20, "ext4"))
	dir, unmount := mount(t, v)
	waittest.Until(t, "the parity is true", func() bool { return p.conditions() == "" })
	file := filepath.Join(dir, "data")
	overwrite(t, file, "before")
	n.waitUntagged() // An administrator would have to revert a change of the metadata without the disk.
	fail()
	overwrite(t, file, "behind")
	waittest.Until(t, "the loss is reported", func() bool { return strings.Contains(p.conditions(), "Degraded") })
	if b, err := os.ReadFile(file); err != nil || string(b) != "behind" {
		t.Errorf("%q, error %v", b, err)
	}
	unmount()
	work()
	lvmByHand(t, "lvchange", "--refresh", "carve/"+v.GetId())
	waittest.Until(t, "the disk is back", func() bool { return p.conditions() == "" })
	p.delete(v.GetId())
	waittest.Until(t, "the volume is gone", func() bool { return len(n.leftovers()) == 0 })
}

// The steps are those of docs/how-to/troubleshooting.md.
func TestAFailedDiskOfARAIDClassIsReplaced(t *testing.T) {
	devices := spares(t, 48, 48, 48)
	faulty, fail, work := leg(t, devices[0])
	t.Cleanup(func() { byHand(t, "wipefs", "--all", devices[2]) })
	n := newNode(t, faulty, devices[1])
	n.config = "- {name: raid1, default: true, volumeGroup: carve, type: raid1}\n"
	t.Cleanup(func() { // Make it a physical volume again, as the node did.
		work()
		byHand(t, "wipefs", "--all", faulty)
		lvmByHand(t, "pvcreate", "--yes", faulty)
	})
	p := n.start()
	v := p.create(create("pvc-1", 20<<20, "ext4"))
	dir, unmount := mount(t, v)
	file := filepath.Join(dir, "data")
	overwrite(t, file, "before")
	// LVM looks for disks before it waits for the group's lock: a waiting command of lvmd would
	// record the disk that vgextend and lvconvert add as missing.
	n.waitUntagged()
	fail()
	overwrite(t, file, "behind")
	waittest.Until(t, "the loss is reported", func() bool { return strings.Contains(p.conditions(), "Degraded") })
	lvmByHand(t, "vgreduce", "--yes", "--removemissing", "--force", "carve")
	lvmByHand(t, "vgextend", "--yes", "carve", devices[2])
	lvmByHand(t, "lvconvert", "--yes", "--repair", "carve/"+v.GetId(), devices[2])
	waittest.Until(t, "the volume is whole", func() bool { return p.conditions() == "" },
		func() any { return p.conditions() }, func() any { return byHand(t, "dmsetup", "status") },
		func() any {
			return lvmByHand(t, "lvs", "--all", "--options", "lv_name,lv_attr,devices,vg_seqno,vg_missing_pv_count")
		})
	if b, err := os.ReadFile(file); err != nil || string(b) != "behind" {
		t.Errorf("%q, error %v", b, err)
	}
	if _, err := p.client.ExpandVolume(t.Context(), &lvmdv1.ExpandVolumeRequest{Id: v.GetId(), RequiredBytes: 28 << 20}); err != nil {
		t.Error(err)
	}
	unmount()
	p.delete(v.GetId())
	waittest.Until(t, "the volume is gone", func() bool { return len(n.leftovers()) == 0 })
}

func TestWhatIsReadOfExtraOptionsIsWhatLVMTakes(t *testing.T) {
	n := newNode(t, spares(t, 60, 60, 60, 60)...)
	layouts := map[string][]string{
		"type: raid1":              {"--type", "raid1", "--mirrors", "1", "--nosync"},
		"type: raid5, stripes: 2":  {"--type", "raid5", "--stripes", "2", "--stripesize", "64k"},
		"type: raid10, stripes: 2": {"--type", "raid10", "--stripes", "2", "--mirrors", "1", "--stripesize", "64k", "--nosync"},
	}
	for _, c := range []struct {
		layout  string
		options []string
	}{
		{"type: raid1", []string{"--addtag=team=a", "--addtag=b/c", "--readahead=256", "--regionsize=2m", "--minrecoveryrate=1024", "--maxrecoveryrate=1m"}},
		{"type: raid1", []string{"--regionsize=3m"}},
		{"type: raid1", []string{"--regionsize=1k"}},
		{"type: raid1", []string{"--regionsize=0m"}},
		{"type: raid1", []string{"--regionsize=4k"}},
		{"type: raid1", []string{"--regionsize=1024g"}},
		{"type: raid1", []string{"--regionsize=2048g"}},
		{"type: raid5, stripes: 2", []string{"--regionsize=32k"}},
		{"type: raid10, stripes: 2", []string{"--regionsize=32k"}},
		{"type: raid1", []string{"--minrecoveryrate=2m", "--maxrecoveryrate=1m"}},
		{"type: raid1", []string{"--minrecoveryrate=2m", "--maxrecoveryrate=0"}},
		{"type: raid1", []string{"--minrecoveryrate=1"}},
		{"type: raid1", []string{"--minrecoveryrate=0"}},
		{"type: raid1", []string{"--maxrecoveryrate=999999999m"}},
	} {
		_, readErr := config.Parse("lvmd.yaml", []byte("apiVersion: carve.csi.local/v1\nkind: LvmdConfig\ndeviceClasses:\n"+
			"- {name: a, volumeGroup: carve, "+c.layout+", lvcreateOptions: ["+strings.Join(c.options, ", ")+"]}\n"))
		args := slices.Concat([]string{"lvcreate", "--yes", "--name", "tried", "--size", "16m"}, layouts[c.layout], c.options, []string{n.group})
		out, makeErr := exec.Command("lvm", args...).CombinedOutput()
		if (readErr == nil) != (makeErr == nil) {
			t.Errorf("%s with %q: read: %v\nlvcreate: %v, %s", c.layout, c.options, readErr, makeErr, out)
		}
		if makeErr == nil {
			lvmByHand(t, "lvremove", "--yes", n.group+"/tried")
		}
	}
}

func TestExtraOptionsReachTheVolume(t *testing.T) {
	n := newNode(t, spares(t, 60, 60, 60)...)
	n.config = "- {name: raid5, default: true, volumeGroup: carve, type: raid5, stripes: 2, lvcreateOptions: " +
		"[--addtag=team=a, --addtag=b, --readahead=256, --regionsize=1m, --minrecoveryrate=1024, --maxrecoveryrate=40m]}\n"
	p := n.start()
	v := p.create(create("pvc-1", 16<<20, ""))
	got := lvmByHand(t, "lvs", "--noheadings", "--units", "k", "--nosuffix", "--separator", " ",
		"-o", "regionsize,raid_min_recovery_rate,raid_max_recovery_rate,lv_read_ahead,lv_tags", n.group+"/"+v.GetId())
	fields := strings.Fields(got)
	if want := []string{"1024.00", "1024", "40960", "128.00"}; len(fields) != 5 || !slices.Equal(fields[:4], want) {
		t.Errorf("region, rates and readahead %q, want %q", fields, want)
	}
	tags := strings.Split(fields[len(fields)-1], ",")
	if !slices.Contains(tags, "team=a") || !slices.Contains(tags, "b") || !slices.Contains(tags, "carve.v1") {
		t.Errorf("tags %q, want team=a and b beside Carve's", tags)
	}
	p.delete(v.GetId())
	waittest.Until(t, "it is gone", func() bool { return len(n.leftovers()) == 0 })
}
