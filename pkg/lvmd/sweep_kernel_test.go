//go:build kernel

package lvmd_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/must"
)

var machineDisks = []string{"/dev/vdb", "/dev/vdc", "/dev/pmem0"}

// takeAway sweeps the machine if f fails, so that the devices below can be removed, too.
func takeAway(t testing.TB, f func()) {
	t.Helper()
	t.Cleanup(func() {
		done := false
		// A fatal error ends this function.
		defer func() {
			if !done {
				sweep(t)
			}
		}()
		f()
		done = true
	})
}

// sweep keeps an earlier test's leftovers from failing later tests. It logs them: the earlier
// test failed, or vmtest reports it.
func sweep(t testing.TB) {
	t.Helper()
	b := broom{t: t}
	b.endProcesses()
	b.removeVolumes()
	b.blank()
	b.removeNodes()
	if len(b.found) > 0 {
		t.Logf("an earlier test left, and it is swept away: %s", strings.Join(b.found, "; "))
	}
}

type broom struct {
	t     testing.TB
	found []string
}

// run tolerates commands that fail or hang: only their combined result counts.
func (b *broom) run(name string, args ...string) string {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "DM_DISABLE_UDEV=1")
	type result struct {
		out []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := cmd.CombinedOutput()
		done <- result{out, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			b.t.Logf("%s %v: %v\n%s", name, args, r.err, r.out)
		}
		return string(r.out)
	case <-time.After(30 * time.Second):
		// A process that waits in the kernel cannot be killed.
		b.t.Logf("%s %v: it does not end", name, args)
		return ""
	}
}

func (b *broom) endProcesses() {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		line, err := os.ReadFile(file)
		if err != nil {
			continue // It ended.
		}
		program, _, _ := strings.Cut(string(line), "\x00")
		if filepath.Base(program) != "lvm" {
			continue
		}
		pid := filepath.Base(filepath.Dir(file))
		b.found = append(b.found, "process "+pid+", "+strings.ReplaceAll(string(line), "\x00", " "))
		b.run("kill", "-KILL", pid)
	}
}

// logicalVolumes includes devices without a table, which no other list has. The latest comes
// first: a device is later than those it lies on.
func (b *broom) logicalVolumes(selection ...string) []string {
	args := append([]string{"info", "--columns", "--noheadings", "--sort", "-minor", "--separator", " ", "-o", "name,uuid"}, selection...)
	var names []string
	for line := range strings.Lines(b.run("dmsetup", args...)) {
		if name, uuid, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(uuid, "LVM-") {
			names = append(names, name)
		}
	}
	return names
}

func (b *broom) removeVolumes() {
	names := b.logicalVolumes()
	if len(names) == 0 {
		return
	}
	// Processes that wait for a suspended device would block operations on those above.
	for _, name := range slices.Backward(b.logicalVolumes("-S", "suspended=Suspended")) {
		b.run("dmsetup", "resume", name)
	}
	b.unmount(names)
	for _, name := range names {
		b.found = append(b.found, "device "+name)
		// From here on it fails every request.
		b.run("dmsetup", "wipe_table", "--noflush", "--nolockfs", name)
	}
	// A device can go once it has no holder.
	for before := len(names) + 1; len(names) > 0 && len(names) < before; {
		for _, name := range names {
			if len(b.holdersOf(name)) == 0 {
				b.run("dmsetup", "remove", "--retry", name)
			}
		}
		before, names = len(names), b.logicalVolumes()
	}
}

func (b *broom) holdersOf(name string) []os.DirEntry {
	target, err := filepath.EvalSymlinks("/dev/mapper/" + name)
	if err != nil {
		return nil
	}
	holders, _ := os.ReadDir(filepath.Join("/sys/block", filepath.Base(target), "holders"))
	return holders
}

func (b *broom) unmount(names []string) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		b.t.Error(err)
		return
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if !strings.HasPrefix(fields[0], "/dev/") || !slices.Contains(names, filepath.Base(fields[0])) && !strings.HasPrefix(fields[0], "/dev/carve/") {
			continue
		}
		b.found = append(b.found, "mount "+fields[1])
		if err := unix.Unmount(fields[1], unix.MNT_DETACH); err != nil {
			b.t.Logf("unmount %s: %v", fields[1], err)
		}
	}
}

func (b *broom) blank() {
	for _, disk := range machineDisks {
		f, err := os.OpenFile(disk, os.O_RDWR, 0)
		if err != nil {
			continue // A machine without persistent memory lacks this disk.
		}
		head := make([]byte, 4096)
		_, err = f.ReadAt(head, 0)
		if err == nil && strings.Contains(string(head), "LABELONE") {
			b.found = append(b.found, "physical volume "+disk)
			_, err = f.WriteAt(make([]byte, 1<<20), 0)
		}
		if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
			b.t.Errorf("%s: %v", disk, err)
		}
	}
}

// removeNodes removes links to missing volumes, and their folders: vgcreate refuses an existing
// name.
func (b *broom) removeNodes() {
	mapped := strings.Fields(b.run("dmsetup", "info", "--columns", "--noheadings", "-o", "name"))
	links, _ := filepath.Glob("/dev/*/*")
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || filepath.Dir(target) != "/dev/mapper" || slices.Contains(mapped, filepath.Base(target)) {
			continue
		}
		b.found = append(b.found, "link "+link)
		_ = os.Remove(link)
		_ = os.Remove(target)
		_ = os.Remove(filepath.Dir(link)) // fails unless empty
	}
	nodes, _ := filepath.Glob("/dev/mapper/*")
	for _, node := range nodes {
		if name := filepath.Base(node); name != "control" && !slices.Contains(mapped, name) {
			b.found = append(b.found, "node "+node)
			_ = os.Remove(node)
		}
	}
}

func TestWhateverATestLeavesIsSweptAway(t *testing.T) {
	sweep(t)
	make := func() {
		lvmByHand(t, "vgcreate", "--yes", "carve", "/dev/vdb")
		lvmByHand(t, "lvcreate", "--yes", "--type", "thin-pool", "--size", "32m", "--name", "pool", "carve")
		lvmByHand(t, "lvcreate", "--yes", "--type", "thin", "--virtualsize", "32m", "--thinpool", "pool", "--name", "mounted", "carve")
	}
	make()
	byHand(t, "mkfs.ext4", "-q", "/dev/carve/mounted")
	dir := t.TempDir()
	must.Succeed(t, unix.Mount("/dev/carve/mounted", dir, "ext4", 0, ""))
	byHand(t, "dmsetup", "create", "carve-half", "--notable", "--uuid", "LVM-half")
	// As a killed LVM leaves it.
	byHand(t, "dmsetup", "suspend", "--noudevsync", "--noflush", "--nolockfs", "carve-pool_tdata")
	sweep(t)
	make() // works as on a clean machine
	sweep(t)
	b := broom{t: t}
	if left := b.logicalVolumes(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
