//go:build kernel && virtual

package lvmd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/waittest"
)

func groupOnPersistentMemory(t *testing.T, devices ...string) {
	t.Helper()
	lvmByHand(t, append([]string{"vgcreate", "--yes", "--physicalextentsize", "4m", "--dataalignment", "2m", "pmem"}, devices...)...)
	t.Cleanup(func() {
		lvmByHand(t, "vgremove", "--yes", "--force", "pmem")
		lvmByHand(t, append([]string{"pvremove", "--yes"}, devices...)...)
	})
}

func TestNoGenerationSeesAnEarlierOneOnPersistentMemory(t *testing.T) {
	n := newNode(t, "/dev/vdb")
	groupOnPersistentMemory(t, "/dev/pmem0")
	n.config += "- {name: pmem, volumeGroup: pmem, medium: pmem}\n"
	noGenerationSeesAnEarlierOne(t, n, []string{"pmem"}, "pmem")
}

func TestAGroupOnPersistentMemoryIsMadeForHugePages(t *testing.T) {
	n := bareNode(t, "{name: carve, medium: pmem, devices: [{path: '/dev/pmem*'}, {path: /dev/vdb}]}", "/dev/pmem0", "/dev/vdb")
	n.config = strings.Replace(n.config, "volumeGroup: carve", "volumeGroup: carve, medium: pmem", 1)
	p := n.start()
	if got := n.physicalVolumes(); got != "/dev/pmem0 carve" || !strings.Contains(p.log.String(), "it cannot be mapped directly into memory") {
		t.Errorf("physical volumes %q", got)
	}
	got := strings.Fields(lvmByHand(t, "pvs", "--noheadings", "--units", "b", "--nosuffix", "-o", "vg_extent_size,pe_start", "/dev/pmem0"))
	if start, err := strconv.ParseInt(got[1], 10, 64); err != nil || got[0] != "2097152" || start%(2<<20) != 0 {
		t.Errorf("extent size and start of data: %q", got)
	}
	v := p.create(create("v", 64<<20, "ext4"))
	dir := t.TempDir()
	if err := syscall.Mount(v.GetDevicePath(), dir, "ext4", 0, "dax=always"); err != nil {
		t.Fatalf("mount with DAX: %v", err)
	}
	if err := syscall.Unmount(dir, 0); err != nil {
		t.Error(err)
	}
	p.kill()
}

func TestPersistentMemoryIsMappedAndAligned(t *testing.T) {
	n := newNode(t, "/dev/vdb")
	groupOnPersistentMemory(t, "/dev/pmem0")
	n.config += "- {name: pmem, volumeGroup: pmem, medium: pmem}\n"
	p := n.start()
	ask := create("pvc-pmem", 64<<20, "ext4")
	ask.DeviceClass = "pmem"
	v := p.create(ask)
	if !v.GetDax() {
		t.Errorf("volume %v", v)
	}
	dir := t.TempDir()
	if err := unix.Mount(v.GetDevicePath(), dir, "ext4", 0, "dax=always"); err != nil {
		t.Errorf("mounting with DAX: %v", err)
	} else if err := unix.Unmount(dir, 0); err != nil {
		t.Error(err)
	}
	p.delete(v.GetId())
	waittest.Until(t, "it is gone", func() bool { return strings.TrimSpace(lvmByHand(t, "lvs", "--noheadings", "pmem")) == "" })

	p.stop()
	n.config = "- {name: local, volumeGroup: carve, medium: pmem}\n"
	p = n.start()
	if c := p.classNamed("local"); c.GetAvailableBytes() != 0 || len(c.GetConditions()) != 1 ||
		!strings.Contains(c.GetConditions()[0].GetMessage(), "cannot be mapped directly into memory") {
		t.Errorf("a disk as pmem: %v", c)
	}
}

func TestStripedPersistentMemoryIsMapped(t *testing.T) {
	var slices []string
	for i := range 2 {
		name := fmt.Sprintf("carve-pmem-%d", i)
		// 100 MiB each, at multiples of 2 MiB, but not at the device's start: LVM would see two
		// devices with the same contents.
		byHand(t, "dmsetup", "create", name, "--noudevsync", "--table", fmt.Sprintf("0 204800 linear /dev/pmem0 %d", 4096+i*204800))
		t.Cleanup(func() { byHand(t, "dmsetup", "remove", "--noudevsync", "--retry", name) })
		slices = append(slices, "/dev/mapper/"+name)
	}
	n := newNode(t)
	groupOnPersistentMemory(t, slices...)
	n.config += "- {name: pmem, volumeGroup: pmem, medium: pmem, type: striped, stripes: 2}\n"
	p := n.start()
	v := p.create(inClass(create("pvc-pmem", 64<<20, "ext4"), "pmem"))
	dir := t.TempDir()
	if err := unix.Mount(v.GetDevicePath(), dir, "ext4", 0, "dax=always"); err != nil {
		t.Errorf("mounting with DAX: %v", err)
	} else {
		file := filepath.Join(dir, "data")
		overwrite(t, file, "mapped")
		if b, err := os.ReadFile(file); err != nil || string(b) != "mapped" {
			t.Errorf("%q, error %v", b, err)
		}
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}
	p.delete(v.GetId())
	waittest.Until(t, "it is gone", func() bool { return strings.TrimSpace(lvmByHand(t, "lvs", "--noheadings", "pmem")) == "" })
}
