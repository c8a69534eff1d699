//go:build kernel

package systemd

import (
	"errors"
	"fmt"
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

const (
	unitName   = "carve-lvmd.service"
	unitPath   = "/etc/systemd/system/" + unitName
	configPath = "/etc/carve/lvmd.yaml"
	stateDir   = "/var/lib/carve"
	socketPath = "/run/carve/lvmd.sock"
)

// waitTimeout bounds waits: the machine is emulated.
const waitTimeout = 2 * time.Minute

// header is how every configuration begins.
const header = "apiVersion: carve.csi.local/v1\nkind: LvmdConfig\n"

// run runs a program as an administrator would; it fails the test when that fails.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := try(name, args...)
	if err != nil {
		t.Fatalf("%s %q: %v\n%s\n%s", name, args, err, out, journal())
	}
	return out
}

// try runs a program and returns what it printed, trimmed.
func try(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// installed is when the unit was installed last.
var installed time.Time

// journal is what the unit logged since it was installed.
func journal() string {
	since := fmt.Sprintf("--since=@%d", installed.Unix())
	out, err := try("journalctl", "--no-pager", "--output=cat", "--unit="+unitName, since)
	if err != nil {
		return err.Error()
	}
	return out
}

// journalNow has a wait that failed print the journal.
func journalNow() any { return journal() }

// install puts the unit and a configuration in place, and takes all away at the end
// of the test. It does not start the unit. An empty configuration is none.
func install(t *testing.T, config string) {
	t.Helper()
	installed = time.Now()
	unit := must.Get(os.ReadFile(unitName))(t)
	t.Cleanup(func() {
		run(t, "systemctl", "stop", unitName)
		for _, path := range []string{filepath.Dir(configPath), unitPath, stateDir} {
			if err := os.RemoveAll(path); err != nil {
				t.Error(err)
			}
		}
		run(t, "systemctl", "daemon-reload")
		_, _ = try("systemctl", "reset-failed", unitName) // It is an error where it has not failed.
	})
	if config != "" {
		configure(t, config)
	}
	must.Succeed(t, os.WriteFile(unitPath, unit, 0o644))
	run(t, "systemctl", "daemon-reload")
}

// configure writes the configuration file.
func configure(t *testing.T, config string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(configPath), 0o755)
	if err == nil {
		err = os.WriteFile(configPath, []byte(header+config), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// group makes a volume group as an administrator does, until the end of the test.
func group(t *testing.T, name string, devices ...string) {
	t.Helper()
	run(t, "vgcreate", slices.Concat([]string{"--yes", name}, devices)...)
	t.Cleanup(func() { removeGroup(t, name, devices...) })
}

func removeGroup(t *testing.T, name string, devices ...string) {
	t.Helper()
	if left := run(t, "lvs", "--noheadings", "--options=lv_name", name); strings.Contains(left, "cv") {
		t.Errorf("left in group %s: %s", name, left)
	}
	// Thin pools are lvmd's: LVM with udev would leave their nodes.
	run(t, "vgremove", "--yes", "--force", "--config", "activation/udev_rules=0", name)
	run(t, "pvremove", slices.Concat([]string{"--yes"}, devices)...)
	run(t, "udevadm", "settle")
	mapped := run(t, "dmsetup", "ls")
	if left := inDev(t, name); len(left) > 0 || strings.Contains(mapped, name+"-cv") {
		t.Errorf("after the removal of group %s there are %q, and the devices:\n%s", name, left, mapped)
	}
}

// inDev lists what there is of a group in /dev: its directory, for which vgcreate refuses the
// name, the links in it, and the nodes of its volumes.
func inDev(t *testing.T, group string) []string {
	t.Helper()
	var paths []string
	for _, pattern := range []string{"/dev/" + group, "/dev/" + group + "/*", "/dev/mapper/" + group + "-*"} {
		paths = append(paths, must.Get(filepath.Glob(pattern))(t)...)
	}
	return paths
}

// property is what systemd says of the unit.
func property(t *testing.T, name string) string {
	t.Helper()
	return run(t, "systemctl", "show", "--value", "--property="+name, unitName)
}

// is fails the test unless a property of the unit has the value.
func is(t *testing.T, name, want string) {
	t.Helper()
	if got := property(t, name); got != want {
		t.Errorf("the unit's %s is %q, want %q\n%s", name, got, want, journal())
	}
}

// made runs one of lvmd's commands that make something, and returns the id of what
// it made.
func made(t *testing.T, args ...string) string {
	t.Helper()
	lines := strings.Split(run(t, "carve-lvmd", args...), "\n")
	if len(lines) != 2 {
		t.Fatalf("carve-lvmd %q printed %q", args, lines)
	}
	return strings.Fields(lines[1])[0]
}

// remove deletes volumes and waits until lvmd has removed all logical volumes that it made. One that
// an administrator removes keeps its link: LVM with udev leaves links to udev, which has not made it.
func remove(t *testing.T, ids ...string) {
	t.Helper()
	for _, id := range ids {
		run(t, "carve-lvmd", "delete", id)
	}
	waittest.Until(t, "the volumes are gone", func() bool {
		return !strings.Contains(run(t, "lvs", "--noheadings", "-o", "name"), "cv")
	}, journalNow)
}

// mount mounts a device and returns how to unmount it, which happens at the end of
// the test otherwise.
func mount(t *testing.T, device, fsType string) (dir string, unmount func()) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount(device, dir, fsType, 0, ""); err != nil {
		t.Fatalf("mount %s: %v", device, err)
	}
	unmount = func() {
		if err := syscall.Unmount(dir, 0); err != nil && !errors.Is(err, syscall.EINVAL) {
			t.Errorf("unmount: %v", err)
		}
	}
	t.Cleanup(unmount)
	return dir, unmount
}
