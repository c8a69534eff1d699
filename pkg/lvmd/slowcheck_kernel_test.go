//go:build kernel

package lvmd_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// beCheck runs the real program of its name once its folder has a file "go".
func beCheck() {
	must := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	self, err := exec.LookPath(os.Args[0])
	must(err)
	dir := filepath.Dir(self)
	must(os.WriteFile(filepath.Join(dir, "checking"), nil, 0o600))
	for _, err := os.Stat(filepath.Join(dir, "go")); err != nil; _, err = os.Stat(filepath.Join(dir, "go")) {
		time.Sleep(100 * time.Millisecond)
	}
	must(os.Setenv("PATH", strings.ReplaceAll(os.Getenv("PATH"), dir+":", "")))
	path, err := exec.LookPath(filepath.Base(self))
	must(err)
	must(syscall.Exec(path, os.Args, os.Environ()))
}

// slowlyChecked replaces thin_check or cache_check by beCheck for lvmd and its lvm. The file
// checking appears when a check begins; the check continues once goOn exists.
func (n *node) slowlyChecked(program string) (checking, goOn string) {
	n.t.Helper()
	n.standIn()
	n.programs = filepath.Join(n.dir, "programs")
	must.Succeed(n.t, os.Mkdir(n.programs, 0o700))
	check := filepath.Join(n.programs, program)
	must.Succeed(n.t, os.Symlink(must.Get(os.Executable())(n.t), check))
	must.Succeed(n.t, os.WriteFile(filepath.Join(n.dir, "config"), fmt.Appendf(nil, "global { %s_executable=%q }", program, check), 0o600))
	return filepath.Join(n.programs, "checking"), filepath.Join(n.programs, "go")
}

func (n *node) poolComponents() (names []string) {
	n.t.Helper()
	for name := range strings.FieldsSeq(mappings(n.t, "-o", "name")) {
		if name == "carve-carve--pool_tmeta" || name == "carve-carve--pool_tdata" {
			names = append(names, name)
		}
	}
	return names
}

func (p *process) inactive(class string) string {
	p.t.Helper()
	for _, c := range p.classNamed(class).GetConditions() {
		if c.GetType() == "PoolInactive" {
			return c.GetMessage()
		}
	}
	return ""
}

// In the first run lvmd is killed during the check, in the second the check exceeds its
// deadline.
func TestASlowCheckOfAThinPoolHoldsUpNothingElse(t *testing.T) {
	n := newNode(t)
	lvmByHand(t, "vgcreate", "--yes", "other", "/dev/vdc")
	takeAway(t, func() {
		lvmByHand(t, "vgremove", "--yes", "--force", "--force", "other")
		lvmByHand(t, "pvremove", "--yes", "/dev/vdc")
	})
	n.config = "- {name: local, default: true, volumeGroup: other}\n" +
		"- {name: beside, volumeGroup: carve}\n" +
		"- {name: thin, volumeGroup: carve, type: thin, thin: {pool: carve-pool, size: 64Mi}}\n"
	n.keeps = []string{"carve-pool"}
	p := n.start()
	beside := p.create(inClass(create("pvc-beside", 16<<20, ""), "beside"))
	thin := p.create(inClass(create("pvc-thin", 16<<20, ""), "thin"))
	data := bytes.Repeat([]byte("carve"), 1<<18)
	must.Succeed(t, os.WriteFile(thin.GetDevicePath(), data, 0o600))
	byHand(t, "sync")
	must.Succeed(t, p.stop())
	lvmByHand(t, "vgchange", "--activate", "n", n.group, "other")

	checking, goOn := n.slowlyChecked("thin_check")
	p = n.start()
	waittest.Until(t, "the pool is checked", func() bool { _, err := os.Stat(checking); return err == nil })
	if why := p.inactive("thin"); !strings.Contains(why, "since 2") || !strings.Contains(why, "thin_check") || p.classNamed("thin").GetAvailableBytes() != 0 {
		t.Errorf("while the pool is checked, its class says %q", why)
	}
	if _, err := os.Stat(beside.GetDevicePath()); err != nil {
		t.Errorf("the volume beside the pool is not active: %v", err)
	}
	p.delete(p.create(create("pvc-other", 16<<20, "ext4")).GetId())
	// LVM's own check may take an hour; the test's deadline is earlier.
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	same, err := p.client.CreateVolume(ctx, inClass(create("pvc-same", 16<<20, "ext4"), "beside"))
	if err != nil {
		t.Fatalf("while the pool is checked, a volume of another class in its group: %v", err)
	}
	p.delete(same.GetVolume().GetId())
	if why := p.inactive("thin"); !strings.Contains(why, "being checked") {
		t.Errorf("while the pool is still checked, its class says %q", why)
	}

	p.kill()
	if left := n.poolComponents(); !slices.Equal(left, []string{"carve-carve--pool_tmeta"}) {
		t.Errorf("a killed lvmd left the components %q active, want the pool's metadata alone", left)
	}
	must.Succeed(t, os.Remove(checking))
	n.poolTimeout = 15 * time.Second
	p = n.start()
	waittest.Until(t, "the pool is checked again", func() bool { _, err := os.Stat(checking); return err == nil })
	waittest.Until(t, "the check is killed, and the class says so", func() bool { return strings.Contains(p.inactive("thin"), "tried again") })
	must.Succeed(t, os.WriteFile(goOn, nil, 0o600))
	waittest.Until(t, "the pool is activated", func() bool { return p.inactive("thin") == "" })
	waittest.Until(t, "the volume has its device", func() bool { return slices.Contains(n.active(), thin.GetId()) })
	if _, err := os.Lstat("/dev/carve/carve-pool_tmeta"); !os.IsNotExist(err) {
		t.Errorf("the check left a link to the pool's metadata: %v", err)
	}
	if info := byHand(t, "dmsetup", "info", "carve-carve--pool_tmeta"); strings.Contains(info, "READ-ONLY") {
		t.Errorf("the metadata of the active pool cannot be written:\n%s", info)
	}
	f := must.Get(os.Open(thin.GetDevicePath()))(t)
	got := make([]byte, len(data))
	_, err = io.ReadFull(f, got)
	if f.Close(); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the volume holds something else: %v", err)
	}
	p.delete(p.create(inClass(create("pvc-later", 16<<20, ""), "thin")).GetId())
	p.delete(thin.GetId())
	p.delete(beside.GetId())
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 })
}

// LVM's own check always fails, and at first lvmd's does, too.
func TestAPoolThatWasCheckedIsNotCheckedByLVM(t *testing.T) {
	for name, layout := range map[string]string{"linear": "", "mirrored": ", layout: {type: raid1}"} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "/dev/vdb", "/dev/vdc")
			n.config = "- {name: thin, default: true, volumeGroup: carve, type: thin, thin: {pool: carve-pool, size: 64Mi" + layout + "}}\n"
			n.keeps = []string{"carve-pool"}
			p := n.start()
			thin := p.create(create("pvc-thin", 16<<20, "ext4"))
			must.Succeed(t, p.stop())
			lvmByHand(t, "vgchange", "--activate", "n", n.group)
			n.standIn()
			must.Succeed(t, os.WriteFile(filepath.Join(n.dir, "config"), []byte(`global { thin_check_executable="/bin/false" }`), 0o600))
			n.programs = filepath.Join(n.dir, "programs")
			must.Succeed(t, os.Mkdir(n.programs, 0o700))
			must.Succeed(t, os.Symlink("/bin/false", filepath.Join(n.programs, "thin_check")))
			p = n.start()
			waittest.Until(t, "the check has failed", func() bool { return strings.Contains(p.inactive("thin"), "tried again: check of the metadata") })
			must.Succeed(t, p.stop())
			if left := mappings(t, "-o", "name"); strings.Contains(left, "carve--pool_") {
				t.Errorf("the check left components active:\n%s", left)
			}

			n.programs = ""
			p = n.start()
			waittest.Until(t, "the volume has its device", func() bool { return slices.Contains(n.active(), thin.GetId()) })
			if why := p.inactive("thin"); why != "" {
				t.Errorf("the pool: %s", why)
			}
			p.delete(p.create(create("pvc-later", 16<<20, "ext4")).GetId())
			p.delete(thin.GetId())
			waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 })
		})
	}
}

// metadataBlock is the block size of thin metadata; block 0 is the superblock.
const metadataBlock = 4096

func TestThePoolsFlagAndDamageAreSeenBeforeItIsActivated(t *testing.T) {
	n := newNode(t)
	n.config = "- {name: local, default: true, volumeGroup: carve}\n" +
		"- {name: thin, volumeGroup: carve, type: thin, thin: {pool: carve-pool, size: 64Mi}}\n"
	n.keeps = []string{"carve-pool"}
	p := n.start()
	thin := p.create(inClass(create("pvc-thin", 16<<20, "ext4"), "thin"))
	must.Succeed(t, p.stop())
	table := byHand(t, "dmsetup", "table", "carve-carve--pool_tmeta")
	lvmByHand(t, "vgchange", "--activate", "n", n.group)
	edit := func(change func(f *os.File)) {
		t.Helper()
		byHand(t, "dmsetup", "create", "edited", "--table", strings.TrimSpace(table))
		defer byHand(t, "dmsetup", "remove", "--retry", "edited")
		f := must.Get(os.OpenFile("/dev/mapper/edited", os.O_RDWR|os.O_SYNC, 0))(t)
		defer f.Close()
		change(f)
	}
	before := make([]byte, 64*metadataBlock)
	edit(func(f *os.File) {
		must.Get(f.ReadAt(before, 0))(t)
		must.Get(f.WriteAt(bytes.Repeat([]byte{0x5a}, len(before)-metadataBlock), metadataBlock))(t)
	})
	p = n.start()
	waittest.Until(t, "the class says that the metadata are damaged", func() bool {
		why := p.inactive("thin")
		return strings.Contains(why, "thin_check") && strings.Contains(why, "lvconvert --repair")
	})
	p.delete(p.create(create("pvc-beside", 16<<20, "ext4")).GetId())
	must.Succeed(t, p.stop())
	if left := n.poolComponents(); len(left) > 0 {
		t.Errorf("after the check, the components %q are active", left)
	}

	edit(func(f *os.File) {
		flagged := slices.Clone(before)
		super := flagged[:metadataBlock]
		binary.LittleEndian.PutUint32(super[4:], binary.LittleEndian.Uint32(super[4:])|1)
		// See dm_bm_checksum in drivers/md/persistent-data, and SUPERBLOCK_CSUM_XOR of dm-thin.
		binary.LittleEndian.PutUint32(super, ^crc32.Checksum(super[4:], crc32.MakeTable(crc32.Castagnoli))^160774)
		must.Get(f.WriteAt(flagged, 0))(t)
	})
	// Whether LVM's check clears the flag depends on LVM's build. This one fails.
	n.standIn()
	config := filepath.Join(n.dir, "config")
	must.Succeed(t, os.WriteFile(config, []byte(`global { thin_check_executable="/bin/false" }`), 0o600))
	p = n.start()
	waittest.Until(t, "LVM has checked the pool", func() bool { return strings.Contains(p.inactive("thin"), "tried again: lvchange: Check of pool") },
		func() any { return p.inactive("thin") })
	must.Succeed(t, p.stop())
	must.Succeed(t, os.Remove(config))

	edit(func(f *os.File) { must.Get(f.WriteAt(before, 0))(t) })
	p = n.start()
	waittest.Until(t, "the pool and its volume are active", func() bool { return slices.Contains(n.active(), thin.GetId()) })
	waittest.Until(t, "the class has no condition", func() bool { return len(p.classNamed("thin").GetConditions()) == 0 },
		func() any { return p.classNamed("thin").GetConditions() })
	p.delete(p.create(inClass(create("pvc-later", 16<<20, "ext4"), "thin")).GetId())
	p.delete(thin.GetId())
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 })
}
