//go:build kernel

package lvmd_test

import (
	"bytes"
	"fmt"
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

// beThinCheck is the real thin_check, but waits until the folder has a file "go".
func beThinCheck(dir string) {
	must := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	must(os.WriteFile(filepath.Join(dir, "checking"), nil, 0o600))
	for _, err := os.Stat(filepath.Join(dir, "go")); err != nil; _, err = os.Stat(filepath.Join(dir, "go")) {
		time.Sleep(100 * time.Millisecond)
	}
	path, err := exec.LookPath("thin_check")
	must(err)
	must(syscall.Exec(path, os.Args, os.Environ()))
}

// slowlyChecked gives lvmd an lvm that checks thin pools with beThinCheck. checking is there once a check
// has begun, and no check goes on until goOn is.
func (n *node) slowlyChecked() (checking, goOn string) {
	n.t.Helper()
	n.standIn()
	check := filepath.Join(n.dir, "thin_check")
	must.Succeed(n.t, os.Symlink(must.Get(os.Executable())(n.t), check))
	must.Succeed(n.t, os.WriteFile(filepath.Join(n.dir, "config"), fmt.Appendf(nil, "global { thin_check_executable=%q }", check), 0o600))
	return filepath.Join(n.dir, "checking"), filepath.Join(n.dir, "go")
}

// poolComponents are the kernel's devices for components of the pool.
func (n *node) poolComponents() (names []string) {
	n.t.Helper()
	for name := range strings.FieldsSeq(mappings(n.t, "-o", "name")) {
		if name == "carve-carve--pool_tmeta" || name == "carve-carve--pool_tdata" {
			names = append(names, name)
		}
	}
	return names
}

// TestASlowCheckOfAThinPoolHoldsUpNoOtherGroup starts lvmd after a reboot, on a node with a pool whose
// check outlasts the activation's deadline at first.
func TestASlowCheckOfAThinPoolHoldsUpNoOtherGroup(t *testing.T) {
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

	checking, goOn := n.slowlyChecked()
	n.poolTimeout = time.Minute
	p = n.start()
	inactive := func() string {
		for _, c := range p.classNamed("thin").GetConditions() {
			if c.GetType() == "PoolInactive" {
				return c.GetMessage()
			}
		}
		return ""
	}
	waittest.Until(t, "the pool is checked", func() bool { _, err := os.Stat(checking); return err == nil })
	if why := inactive(); !strings.Contains(why, "since 2") || !strings.Contains(why, "thin_check") || p.classNamed("thin").GetAvailableBytes() != 0 {
		t.Errorf("while the pool is checked, its class says %q", why)
	}
	p.delete(p.create(create("pvc-other", 16<<20, "ext4")).GetId())
	if _, err := os.Stat(beside.GetDevicePath()); err != nil {
		t.Errorf("the volume beside the pool is not active: %v", err)
	}

	waittest.Until(t, "the check is killed, and the class says so", func() bool { return strings.Contains(inactive(), "tried again") })
	waittest.Until(t, "nothing of the killed activation is left", func() bool { return len(n.poolComponents()) == 0 })
	must.Succeed(t, os.WriteFile(goOn, nil, 0o600))
	waittest.Until(t, "the pool is activated", func() bool { return inactive() == "" })
	waittest.Until(t, "the volume has its device", func() bool { return slices.Contains(n.active(), thin.GetId()) })
	f := must.Get(os.Open(thin.GetDevicePath()))(t)
	got := make([]byte, len(data))
	_, err := io.ReadFull(f, got)
	if f.Close(); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the volume holds something else: %v", err)
	}
	p.delete(p.create(inClass(create("pvc-later", 16<<20, ""), "thin")).GetId())
	p.delete(thin.GetId())
	p.delete(beside.GetId())
	waittest.Until(t, "nothing is left", func() bool { return len(n.leftovers()) == 0 })
}
