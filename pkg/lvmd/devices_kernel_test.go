//go:build kernel

package lvmd_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// bareNode has two blank disks, on which lvmd creates the group "carve" from entry, a part of
// volumeGroups. The test's end blanks them.
func bareNode(t testing.TB, entry string, disks ...string) *node {
	t.Helper()
	sweep(t)
	n := &node{t: t, group: "carve", dir: t.TempDir()}
	n.config = "- {name: local, default: true, volumeGroup: carve}\nvolumeGroups:\n- " + entry + "\n"
	blankDisks(t, disks...)
	takeAway(t, func() {
		if out, err := exec.Command("lvm", "vgs", "--noheadings", n.group, "--config", handConfig).CombinedOutput(); err == nil {
			if !t.Failed() {
				n.wantRecords()
			}
			lvmByHand(t, "vgremove", "--yes", "--force", "--force", n.group)
		} else if !bytes.Contains(out, []byte("not found")) {
			t.Errorf("vgs: %v\n%s", err, out)
		}
		blankDisks(t, disks...)
	})
	return n
}

func blankDisks(t testing.TB, disks ...string) {
	t.Helper()
	for _, d := range disks {
		byHand(t, "wipefs", "--all", "--force", "--quiet", d)
		f, err := os.OpenFile(d, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.Write(make([]byte, 1<<20))
		if err == nil {
			err = f.Sync()
		}
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// sendChange acts like a new disk, or like udev after a write.
func sendChange(t testing.TB, device string) {
	t.Helper()
	must.Succeed(t, os.WriteFile("/sys/class/block/"+filepath.Base(device)+"/uevent", []byte("change"), 0))
}

func loopDisk(t testing.TB, size int64) (device, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "disk")
	device = must.Get(blockdev.AttachFile(file, size))(t)
	t.Cleanup(func() { byHand(t, "losetup", "--detach", device) })
	return device, file
}

func (n *node) physicalVolumes() string {
	n.t.Helper()
	return strings.Join(strings.Fields(lvmByHand(n.t, "pvs", "--noheadings", "-o", "pv_name,vg_name")), " ")
}

func TestAGroupIsMadeOfBlankDisksAndTakesThoseThatComeLater(t *testing.T) {
	growing, file := loopDisk(t, 64<<20)
	n := bareNode(t, fmt.Sprintf("{name: carve, devices: [{path: '/dev/vd[bc]'}, {path: %s}]}", growing), "/dev/vdb", "/dev/vdc")
	byHand(t, "mkfs.ext4", "-q", "-F", "/dev/vdc")
	p := n.start()
	first := p.available()
	if got := n.physicalVolumes(); !strings.Contains(got, "/dev/vdb carve") || !strings.Contains(got, growing+" carve") || strings.Contains(got, "/dev/vdc") {
		t.Fatalf("physical volumes %q, %d bytes available", got, first)
	}
	if kind := strings.TrimSpace(byHand(t, "blkid", "-p", "-s", "TYPE", "-o", "value", "/dev/vdc")); kind != "ext4" {
		t.Fatalf("the disk with a file system holds %q now", kind)
	}
	if !strings.Contains(p.log.String(), "it has a signature (ext4)") {
		t.Errorf("the log does not say why /dev/vdc is not used:\n%s", p.log)
	}
	v := p.create(create("v", 16<<20, "ext4"))
	dir, unmount := mount(t, v)
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "file"), []byte("data"), 0o600))
	byHand(t, "wipefs", "--all", "--quiet", "/dev/vdc")
	blankDisks(t, "/dev/vdc")
	sendChange(t, "/dev/vdc")
	waittest.Until(t, "the second disk is added", func() bool { return p.available() > first })
	second := p.available()
	byHand(t, "fallocate", "--length", "128MiB", file)
	byHand(t, "losetup", "--set-capacity", growing)
	waittest.Until(t, "the enlarged disk is used to its end", func() bool { return p.available() == second+64<<20 })
	large := p.create(create("large", p.available(), "ext4"))
	if got := p.available(); got != 0 {
		t.Errorf("%d bytes are left", got)
	}
	p.kill()
	p = n.start()
	if got := p.available(); got != 0 {
		t.Errorf("%d bytes available after a restart", got)
	}
	lvmByHand(t, "lvremove", "--yes", n.group+"/"+large.GetId())
	waittest.Until(t, "the space is back", func() bool { return p.available() == second+64<<20 })
	if b, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(b) != "data" {
		t.Errorf("the volume holds %q, error %v", b, err)
	}
	unmount()
	p.delete(v.GetId())
	waittest.Until(t, "the volume is gone", func() bool { return len(n.leftovers()) == 0 })
}

func TestDevicesWithSomethingOnThemAreNeverTouched(t *testing.T) {
	foreign, _ := loopDisk(t, 64<<20)
	unknown, _ := loopDisk(t, 64<<20)
	mounted, _ := loopDisk(t, 64<<20)
	n := bareNode(t, fmt.Sprintf("{name: carve, devices: [{path: '/dev/vd[bc]'}, {path: %s}, {path: %s}, {path: %s}], allowSignatures: [/dev/vdb, %s, %s]}",
		foreign, unknown, mounted, foreign, mounted), "/dev/vdb", "/dev/vdc")
	// A partition table with one partition: type 0x83 at sector 2048.
	table := make([]byte, 512)
	copy(table[446:], []byte{0, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0, 1, 0})
	table[510], table[511] = 0x55, 0xaa
	writeTo(t, "/dev/vdb", 0, table)
	byHand(t, "blockdev", "--rereadpt", "/dev/vdb")
	byHand(t, "mkfs.ext4", "-q", "-F", "/dev/vdc")
	lvmByHand(t, "vgcreate", "--yes", "foreign", foreign)
	t.Cleanup(func() { lvmByHand(t, "vgremove", "--yes", "foreign") })
	writeTo(t, unknown, 100, []byte("something"))
	byHand(t, "mkfs.ext4", "-q", "-F", mounted)
	dir := t.TempDir()
	must.Succeed(t, syscall.Mount(mounted, dir, "ext4", 0, ""))
	t.Cleanup(func() { syscall.Unmount(dir, 0) })
	digest := func() (heads []string) {
		for _, d := range []string{"/dev/vdb", "/dev/vdc", foreign, unknown} {
			f := must.Get(os.Open(d))(t)
			head := make([]byte, 4<<20)
			must.Get(f.ReadAt(head, 0))(t)
			f.Close()
			heads = append(heads, fmt.Sprintf("%s %x", d, sha256.Sum256(head)))
		}
		return heads
	}
	before := digest()

	p := n.start()
	c := p.state().GetClasses()[0]
	if len(c.GetConditions()) != 1 {
		t.Fatalf("class %v", c)
	}
	message := c.GetConditions()[0].GetMessage()
	for _, want := range []string{
		"/dev/vdb: it has the partitions vdb1",
		"/dev/vdc: it has a signature (ext4)",
		foreign + `: it belongs to volume group "foreign"`,
		unknown + ": its first 4096 bytes are not empty",
		mounted + ": it is mounted",
	} {
		if !strings.Contains(message, want) {
			t.Errorf("%q is not in: %s", want, message)
		}
	}
	if after := digest(); !slices.Equal(after, before) {
		t.Errorf("contents changed: %q, then %q", before, after)
	}
	p.kill()
	blankDisks(t, "/dev/vdb")
	byHand(t, "blockdev", "--rereadpt", "/dev/vdb")
	byHand(t, "mkfs.ext4", "-q", "-F", "/dev/vdb")
	p = n.start()
	if got := n.physicalVolumes(); !strings.Contains(got, "/dev/vdb carve") || strings.Contains(got, "/dev/vdc") || p.available() == 0 {
		t.Errorf("physical volumes %q, %d bytes available", got, p.available())
	}
	if after := digest(); !slices.Equal(after[1:], before[1:]) {
		t.Errorf("contents changed: %q, then %q", before, after)
	}
}

func TestAClassSpansTwoGroupsThatLvmdMade(t *testing.T) {
	n := bareNode(t, "", "/dev/vdb", "/dev/vdc")
	n.config = "- {name: local, default: true, volumeGroups: [carve, second]}\nvolumeGroups:\n" +
		"- {name: carve, devices: [{path: /dev/vdb}]}\n- {name: second, devices: [{path: '/dev/vd[bc]'}]}\n"
	p := n.start()
	t.Cleanup(func() { lvmByHand(t, "vgremove", "--yes", "--force", "--force", "second") })
	if got := n.physicalVolumes(); got != "/dev/vdb carve /dev/vdc second" {
		t.Fatalf("physical volumes %q", got)
	}
	c := p.state().GetClasses()[0]
	if len(c.GetGroups()) != 2 || c.GetAvailableBytes() != 2*c.GetMaximumVolumeSizeBytes() {
		t.Errorf("class %v", c)
	}
	first := p.create(create("a", 64<<20, "ext4"))
	second := p.create(create("b", 32<<20, "ext4"))
	if first.GetVgName() == second.GetVgName() {
		t.Errorf("both volumes are in %s, although the other group had more free space", first.GetVgName())
	}
	most := p.state().GetClasses()[0].GetMaximumVolumeSizeBytes()
	if largest := p.create(create("c", most, "ext4")); largest.GetVgName() != second.GetVgName() || largest.GetSizeBytes() != most {
		t.Errorf("largest volume %v", largest)
	}
	p.kill()
	p = n.start()
	list, err := p.client.ListVolumes(t.Context(), &lvmdv1.ListVolumesRequest{})
	if err != nil || len(list.GetVolumes()) != 3 {
		t.Errorf("volumes %v, error %v", list, err)
	}
	p.kill()
}

func writeTo(t testing.TB, device string, at int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(b, at)
	if err == nil {
		err = f.Sync()
	}
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
}

func TestALoopFileOutlivesLvmdAndTheMachine(t *testing.T) {
	overlay, err := os.ReadFile("../../deploy/overlays/loop/lvmd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "loop", "carve.img")
	_, shipped, ok := strings.Cut(string(overlay), "deviceClasses:\n")
	shipped = strings.NewReplacer("/var/lib/carve/loop/carve.img", file, "10Gi", "128Mi").Replace(shipped)
	if !ok || !strings.Contains(shipped, file) || !strings.Contains(shipped, "128Mi") {
		t.Fatalf("the overlay's configuration is not what this test knows:\n%s", overlay)
	}
	n := bareNode(t, "")
	n.config = shipped
	devices := func() []string {
		return strings.Fields(byHand(t, "losetup", "--noheadings", "--output", "NAME", "--associated", file))
	}
	p := n.start()
	t.Cleanup(func() {
		// The volumes go before the group, the devices after it.
		lvmByHand(t, "vgremove", "--yes", "--force", "--force", n.group)
		for _, d := range devices() {
			byHand(t, "losetup", "--detach", d)
		}
	})
	v := p.create(create("v", 32<<20, ""))
	fill(t, v, 0x5a)
	free := p.available()
	p.kill()
	p = n.start()
	if got := devices(); len(got) != 1 {
		t.Errorf("the file is attached to %q", got)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	// After a boot no devices are left. The configured file is larger.
	lvmByHand(t, "vgchange", "--activate", "n", n.group)
	byHand(t, "losetup", "--detach", devices()[0])
	n.config = strings.Replace(n.config, "128Mi", "192Mi", 1)
	p = n.start()
	if got := p.available(); got != free+64<<20 {
		t.Errorf("%d bytes available in the larger file, want %d", got, free+64<<20)
	}
	list, err := p.client.ListVolumes(t.Context(), &lvmdv1.ListVolumesRequest{})
	volumes := list.GetVolumes()
	if err != nil || len(volumes) != 1 || volumes[0].GetId() != v.GetId() {
		t.Fatalf("volumes %v, error %v", volumes, err)
	}
	b := make([]byte, 16)
	f, err := os.Open(volumes[0].GetDevicePath())
	if err == nil {
		_, err = f.ReadAt(b, 16<<20)
		f.Close()
	}
	if err != nil || !bytes.Equal(b, bytes.Repeat([]byte{0x5a}, len(b))) {
		t.Errorf("the volume holds % x, error %v", b, err)
	}
	// Wiping may free blocks of the file only temporarily.
	p.delete(v.GetId())
	waittest.Until(t, "the volume is gone", func() bool { return len(n.leftovers()) == 0 })
	p.kill()
	p = n.start()
	var st syscall.Stat_t
	if err := syscall.Stat(file, &st); err != nil || st.Blocks*512 < 192<<20 {
		t.Errorf("the file has %d bytes allocated, error %v", st.Blocks*512, err)
	}
	p.kill()
}

func TestAGroupIsMadeAfterAnLvmdThatCrashedBefore(t *testing.T) {
	n := bareNode(t, "{name: carve, devices: [{path: '/dev/vd[bc]'}]}", "/dev/vdb", "/dev/vdc")
	command := n.command()
	log := &output{}
	command.Stdout, command.Stderr = log, log
	must.Succeed(t, command.Start())
	// lvmd looks for the group on all disks before it creates it, and the label appears before
	// the command ends.
	label := make([]byte, 8)
	waittest.Until(t, "the first disk is a physical volume", func() bool {
		f := must.Get(os.OpenFile("/dev/vdb", os.O_RDONLY|syscall.O_DIRECT, 0))(t)
		defer f.Close()
		sector := aligned(512)
		must.Get(f.ReadAt(sector, 512))(t)
		copy(label, sector)
		return string(label) == "LABELONE"
	})
	must.Succeed(t, command.Process.Kill())
	_ = command.Wait()
	waittest.Until(t, "its last LVM command has ended", func() bool { return n.physicalVolumes() != "" })
	t.Logf("left behind: %s", n.physicalVolumes())
	p := n.start()
	if got := n.physicalVolumes(); got != "/dev/vdb carve /dev/vdc carve" {
		t.Errorf("physical volumes %q\n%s", got, log)
	}
	p.create(create("v", 16<<20, "ext4"))
	p.kill()
}

// aligned returns a buffer for direct I/O.
func aligned(n int) []byte {
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	return b
}
