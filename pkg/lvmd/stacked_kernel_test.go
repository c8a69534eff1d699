//go:build kernel

package lvmd_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// stacked is a device over two that show the same physical volume.
type stacked struct {
	device string
	below  [2]string
	// build creates the device, and take removes it.
	build, take func()
	// agree fails the test if one of the two was written to without the device.
	agree func()
	// members means that one of the two alone must not be used, either.
	members bool
}

func readSys(t testing.TB, path ...string) string {
	t.Helper()
	return strings.TrimSpace(string(must.Get(os.ReadFile(filepath.Join(path...)))(t)))
}

func writeSys(t testing.TB, value string, path ...string) {
	t.Helper()
	must.Succeed(t, os.WriteFile(filepath.Join(path...), []byte(value), 0o200))
}

// sectorsWritten counts since the device appeared.
func sectorsWritten(t testing.TB, device string) int64 {
	t.Helper()
	n := must.Get(blockdev.NumberOf(device))(t)
	return must.Get(strconv.ParseInt(strings.Fields(readSys(t, "/sys/dev/block", n.String(), "stat"))[6], 10, 64))(t)
}

// md uses metadata format 1.0, at the end of the members, so they show the mirror's contents.
func md(t *testing.T) *stacked {
	const size, sectors = 96 << 20, 96 << 11
	s := &stacked{device: "/dev/md0", members: true}
	for i := range s.below {
		var file string
		s.below[i], file = loopDisk(t, size)
		writeMemberOf2(t, file, i, sectors)
	}
	const sys = "/sys/block/md0"
	s.build = func() {
		writeSys(t, "md0", "/sys/module/md_mod/parameters/new_array")
		writeSys(t, "1.0", sys, "md/metadata_version")
		for _, device := range s.below {
			writeSys(t, must.Get(blockdev.NumberOf(device))(t).String(), sys, "md/new_dev")
		}
		writeSys(t, "active", sys, "md/array_state")
	}
	s.take = func() {
		if _, err := os.Stat(sys); err != nil {
			return
		}
		writeSys(t, "clear", sys, "md/array_state")
		waittest.Until(t, "the array is gone", func() bool { _, err := os.Stat(sys); return err != nil })
	}
	s.agree = func() {
		writeSys(t, "check", sys, "md/sync_action")
		waittest.Until(t, "the mirror is compared", func() bool { return readSys(t, sys, "md/sync_action") == "idle" })
		if n := readSys(t, sys, "md/mismatch_cnt"); n != "0" {
			t.Errorf("%s sectors of the members differ", n)
		}
	}
	return s
}

// writeMemberOf2 writes a mirror member's superblock as mdadm does (mdp_superblock_1).
func writeMemberOf2(t *testing.T, file string, number int, sectors uint64) {
	t.Helper()
	at := (sectors - 16) &^ 7
	b := make([]byte, 4096)
	put32, put64 := binary.LittleEndian.PutUint32, binary.LittleEndian.PutUint64
	put32(b, 0xa92b4efc)
	put32(b[4:], 1) // Format
	copy(b[16:], "carve-test-array")
	put32(b[72:], 1)       // RAID level
	put64(b[80:], at&^127) // Sectors used of each member
	put32(b[92:], 2)       // Members
	put64(b[136:], at)     // Sectors of data
	put64(b[144:], at)     // This offset
	put32(b[160:], uint32(number))
	copy(b[168:], fmt.Sprintf("carve-member-%03d", number))
	put64(b[200:], 1)          // Events
	put64(b[208:], ^uint64(0)) // In sync
	put32(b[220:], 2)          // Roles, which follow
	binary.LittleEndian.PutUint16(b[258:], 1)
	var sum uint64
	for i := 0; i < 260; i += 4 {
		sum += uint64(binary.LittleEndian.Uint32(b[i:]))
	}
	put32(b[216:], uint32(sum)+uint32(sum>>32))
	f := must.Get(os.OpenFile(file, os.O_WRONLY, 0))(t)
	defer f.Close()
	must.Get(f.WriteAt(b, int64(at)*512))(t)
}

// multipath has two paths of the kernel's scsi_debug driver to one disk.
func multipath(t *testing.T) *stacked {
	byHand(t, "modprobe", "--all", "sd_mod", "dm_multipath", "dm_round_robin")
	byHand(t, "modprobe", "scsi_debug", "dev_size_mb=96", "num_tgts=2", "delay=0")
	t.Cleanup(func() {
		waittest.Until(t, "the SCSI disks are gone", func() bool { return exec.Command("modprobe", "-r", "scsi_debug").Run() == nil })
	})
	const name = "carve-paths"
	s := &stacked{device: "/dev/mapper/" + name}
	var before int64
	written := func() int64 { return sectorsWritten(t, s.below[0]) + sectorsWritten(t, s.below[1]) }
	waittest.Until(t, "both paths are there", func() bool {
		models, _ := filepath.Glob("/sys/block/sd*/device/model")
		found := 0
		for _, file := range models {
			if b, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(b)) == "scsi_debug" && found < 2 {
				s.below[found] = "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(file)))
				found++
			}
		}
		return found == 2
	})
	s.build = func() {
		before = written()
		byHand(t, "dmsetup", "create", name, "--uuid", "mpath-353333330000007d0", "--table",
			fmt.Sprintf("0 %d multipath 0 0 1 1 round-robin 0 2 1 %s 1 %s 1", 96<<11, s.below[0], s.below[1]))
	}
	s.take = func() {
		if _, err := os.Stat(s.device); err == nil {
			byHand(t, "dmsetup", "remove", "--retry", name)
		}
	}
	s.agree = func() {
		if through, paths := sectorsWritten(t, s.device), written()-before; through == 0 || paths != through {
			t.Errorf("%d sectors were written to the paths, and %d through the device", paths, through)
		}
	}
	return s
}

func TestAGroupOnAnArrayIsUsedThroughItOnly(t *testing.T) { usedThroughItOnly(t, md(t)) }

func TestAGroupOnAMultipathDeviceIsUsedThroughItOnly(t *testing.T) {
	usedThroughItOnly(t, multipath(t))
}

// usedThroughItOnly puts the group on the device and later removes the device, so that the two
// below show the group.
func usedThroughItOnly(t *testing.T, s *stacked) {
	t.Cleanup(s.take)
	s.build()
	n := newNode(t, s.device)
	t.Cleanup(func() { // Clean up after a failure.
		if _, err := os.Stat(s.device); err != nil {
			s.build()
		}
	})
	p := n.start()
	v := p.create(create("pvc-kept", 8<<20, ""))
	fill(t, v, 0x5a)
	free := p.available()
	served := func(when string) {
		t.Helper()
		waittest.Until(t, when+": the group is used", func() bool {
			c := p.classNamed("local")
			return c.GetAvailableBytes() == free && len(c.GetConditions()) == 0 && p.conditions() == ""
		}, func() any { return p.classNamed("local") })
		number := must.Get(blockdev.NumberOf(s.device))(t)
		if on := byHand(t, "dmsetup", "deps", "carve-"+v.GetId()); !strings.Contains(on, fmt.Sprintf("(%d, %d)", number.Major, number.Minor)) {
			t.Errorf("%s: the volume lies on %s, want %v", when, on, number)
		}
		checkFilled(t, v, 0x5a, 8<<20)
		p.delete(p.create(create("pvc-"+strings.ReplaceAll(when, " ", "-"), 8<<20, "")).GetId())
		waittest.Until(t, when+": one more is made and removed", func() bool { return p.available() == free })
	}
	served("while lvmd runs")
	p.kill()
	p = n.start()
	served("after a restart")
	s.agree()

	// The device disappears while lvmd runs.
	must.Succeed(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	byHand(t, "lvm", "vgchange", "--config", only(s.device), "--activate", "n", n.group)
	s.take()
	before := [2]int64{sectorsWritten(t, s.below[0]), sectorsWritten(t, s.below[1])}
	must.Succeed(t, p.cmd.Process.Signal(syscall.SIGCONT))
	refused := func(when string) {
		t.Helper()
		waittest.Until(t, when+": the group is not used", func() bool { return p.hasOne("DuplicateDevice", s.below[0], s.below[1]) },
			func() any { return p.classNamed("local") })
		if _, err := p.client.CreateVolume(t.Context(), create("pvc-more", 8<<20, "")); err == nil {
			t.Errorf("%s: a volume was made", when)
		}
		if !p.has(v.GetId()) {
			t.Errorf("%s: volume %s is forgotten", when, v.GetId())
		}
		if now := [2]int64{sectorsWritten(t, s.below[0]), sectorsWritten(t, s.below[1])}; now != before {
			t.Errorf("%s: %v sectors were written to what was below, before that %v", when, now, before)
		}
	}
	refused("while lvmd runs")
	p.kill()
	p = n.start()
	refused("after a restart")
	if s.members {
		away := filepath.Join(n.dir, "head")
		byHand(t, "dd", "if="+s.below[1], "of="+away, "bs=1M", "count=1")
		wipeHead(t, s.below[1])
		sendChange(t, s.below[1])
		waittest.Until(t, "one member alone is not used", func() bool { return p.hasOne("VolumeGroupMissing") }, func() any { return p.classNamed("local") })
		if now := sectorsWritten(t, s.below[0]); now != before[0] {
			t.Errorf("%d sectors were written to one member alone, before that %d", now, before[0])
		}
		byHand(t, "dd", "if="+away, "of="+s.below[1], "bs=1M", "count=1", "conv=fsync,notrunc")
	}
	s.build()
	served("when it is back")
	s.agree()
	p.delete(v.GetId())
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 })
	p.kill()
}
