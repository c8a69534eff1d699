//go:build kernel

package cgroup_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/devmapper"
	"github.com/carve-csi/carve/pkg/iolimit/cgroup"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

const (
	root    = cgroup.Root("/sys/fs/cgroup")
	disk    = "/dev/vdb"
	sectors = 1 << 20 // of each device: 512 MiB
	mebi    = 1 << 20
)

// pod creates a Pod's cgroup as the kubelet does, and finds it as the Applier
// does.
func pod(t *testing.T, uid, dir string, controllers ...string) string {
	t.Helper()
	made := string(root)
	for _, name := range strings.Split(dir, "/") {
		for _, c := range controllers {
			must.Succeed(t, os.WriteFile(filepath.Join(made, "cgroup.subtree_control"), []byte("+"+c), 0))
		}
		made = filepath.Join(made, name)
		if err := os.Mkdir(made, 0o755); err == nil {
			parent := made
			t.Cleanup(func() { _ = os.Remove(parent) })
		}
	}
	found, err := root.Pods([]string{uid})
	if err != nil || found[uid] != made {
		t.Fatalf("found %v, error %v, want %s", found, err, made)
	}
	return made
}

func device(t *testing.T, name, table string) (path string, number string) {
	t.Helper()
	run(t, "dmsetup", "create", name, "--table", table)
	t.Cleanup(func() { run(t, "dmsetup", "remove", "--retry", name) })
	d := must.Get(devmapper.Status(name))(t)
	return fmt.Sprintf("/dev/dm-%d", d.Minor), fmt.Sprintf("%d:%d", d.Major, d.Minor)
}

func run(t *testing.T, argv ...string) {
	t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v: %s", argv, err, out)
	}
}

// write runs fio in a cgroup until the test ends.
func write(t *testing.T, dir string, args ...string) {
	t.Helper()
	group := must.Get(os.Open(dir))(t)
	defer group.Close()
	fio := exec.Command("fio", append([]string{"--name=pod", "--rw=write", "--time_based", "--runtime=600", "--ioengine=psync", "--thread"}, args...)...)
	fio.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd()), Setpgid: true}
	var said bytes.Buffer
	fio.Stdout, fio.Stderr = &said, &said
	must.Succeed(t, fio.Start())
	t.Cleanup(func() {
		if t.Failed() {
			stat, _ := os.ReadFile(filepath.Join(dir, "io.stat"))
			max, _ := os.ReadFile(filepath.Join(dir, "io.max"))
			t.Logf("io.stat: %sio.max: %s", stat, max)
		}
		_ = syscall.Kill(-fio.Process.Pid, syscall.SIGKILL)
		_ = fio.Wait()
		if t.Failed() {
			t.Logf("fio: %s", said.String())
		}
		waittest.Until(t, "the cgroup is empty", func() bool {
			procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			return err != nil || len(procs) == 0
		})
	})
}

// stat reads a cgroup's counter for a device.
func stat(t *testing.T, dir, number, key string) float64 {
	t.Helper()
	text := string(must.Get(os.ReadFile(filepath.Join(dir, "io.stat")))(t))
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] != number {
			continue
		}
		for _, word := range words[1:] {
			if value, ok := strings.CutPrefix(word, key+"="); ok {
				return must.Get(strconv.ParseFloat(value, 64))(t)
			}
		}
	}
	return 0
}

// rate measures a cgroup's counter per second, some time after a change.
func rate(t *testing.T, dir, number, key string) float64 {
	t.Helper()
	time.Sleep(1500 * time.Millisecond)
	began, before := time.Now(), stat(t, dir, number, key)
	time.Sleep(3 * time.Second)
	return (stat(t, dir, number, key) - before) / time.Since(began).Seconds()
}

func set(t *testing.T, dir, number string, max cgroup.Max) {
	t.Helper()
	for i := range 2 {
		if changed, err := root.Set(dir, number, max); err != nil || changed != (i == 0) {
			t.Fatalf("limits %+v, time %d: changed %t, error %v", max, i, changed, err)
		}
	}
}

// Limits of the Pod's device hold, change while it writes, and end.
func TestAWriterIsHeldToItsLimits(t *testing.T) {
	must.Succeed(t, root.Check())
	key := strings.Repeat("0123456789abcdef", 8)
	for _, c := range []struct{ name, uid, dir, table string }{
		{"a logical volume, cgroupfs, burstable", "3e0c6a1e-0000-4000-8000-000000000001",
			"kubepods/burstable/pod3e0c6a1e-0000-4000-8000-000000000001", fmt.Sprintf("0 %d linear %s 2048", sectors, disk)},
		{"an encrypted volume, systemd, best effort", "3e0c6a1e-0000-4000-8000-000000000002",
			"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod3e0c6a1e_0000_4000_8000_000000000002.slice",
			fmt.Sprintf("0 %d crypt aes-xts-plain64 %s 0 %s 2048", sectors, key, disk)},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := pod(t, c.uid, c.dir)
			path, number := device(t, "carve-iolimit-test", c.table)
			if _, err := os.Stat(filepath.Join(dir, "io.max")); err == nil {
				t.Log("the controller was enabled before")
			}
			set(t, dir, number, cgroup.Max{WriteBPS: 1 << 50})
			write(t, dir, "--filename="+path, "--bs=64k", "--direct=1", "--size=256m")
			free := rate(t, dir, number, "wbytes")
			set(t, dir, number, cgroup.Max{WriteBPS: mebi})
			slow := rate(t, dir, number, "wbytes")
			set(t, dir, number, cgroup.Max{WriteBPS: 4 * mebi, ReadIOPS: 100})
			faster := rate(t, dir, number, "wbytes")
			set(t, dir, number, cgroup.Max{WriteIOPS: 20})
			requests := rate(t, dir, number, "wios")
			set(t, dir, number, cgroup.Max{})
			again := rate(t, dir, number, "wbytes")
			t.Logf("MiB/s: %.1f without a limit, %.2f of 1, %.2f of 4, %.1f without again; %.1f requests/s of 20",
				free/mebi, slow/mebi, faster/mebi, again/mebi, requests)
			for what, ok := range map[string]bool{
				"1 MiB/s":          slow > 0.5*mebi && slow < 1.5*mebi,
				"4 MiB/s":          faster > 2*mebi && faster < 6*mebi,
				"20 requests/s":    requests > 10 && requests < 30,
				"no limit, before": free > 3*faster,
				"no limit, after":  again > 3*faster,
			} {
				if !ok {
					t.Errorf("%s: it does not hold", what)
				}
			}
		})
	}
}

// The kernel writes back the page cache on the Pod's account.
func TestWhatIsWrittenThroughThePageCacheIsLimited(t *testing.T) {
	const uid = "3e0c6a1e-0000-4000-8000-000000000003"
	dir := pod(t, uid, "kubepods/pod"+uid, "memory", "io")
	path, number := device(t, "carve-iolimit-test", fmt.Sprintf("0 %d linear %s 2048", sectors, disk))
	run(t, "mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", path)
	at := t.TempDir()
	run(t, "mount", path, at)
	t.Cleanup(func() { run(t, "umount", at) })
	limited := false
	t.Cleanup(func() {
		if _, err := root.Set(dir, number, cgroup.Max{}); limited && err != nil { // unmounting writes the rest
			t.Error(err)
		}
	})
	write(t, dir, "--directory="+at, "--bs=64k", "--size=64m", "--fdatasync=16")
	free := rate(t, dir, number, "wbytes")
	set(t, dir, number, cgroup.Max{WriteBPS: 2 * mebi})
	limited = true
	slow := rate(t, dir, number, "wbytes")
	t.Logf("MiB/s: %.1f without a limit, %.2f of 2", free/mebi, slow/mebi)
	if slow > 3*mebi || slow < 0.5*mebi || free < 3*slow {
		t.Error("the limit does not hold")
	}
}

func TestADeviceThatIsGoneAndAPodThatHasEnded(t *testing.T) {
	const uid = "3e0c6a1e-0000-4000-8000-000000000004"
	dir := pod(t, uid, "kubepods/burstable/pod"+uid)
	if _, err := root.Set(dir, "253:1023", cgroup.Max{ReadBPS: mebi}); !errors.Is(err, cgroup.ErrNoDevice) {
		t.Errorf("error %v, want that there is no device", err)
	}
	must.Succeed(t, os.Remove(dir))
	if _, err := root.Set(dir, "253:1023", cgroup.Max{ReadBPS: mebi}); !errors.Is(err, cgroup.ErrNoPod) {
		t.Errorf("error %v, want that there is no Pod", err)
	}
	if found, err := root.Pods([]string{uid}); err != nil || len(found) > 0 {
		t.Errorf("found %v, error %v", found, err)
	}
}
