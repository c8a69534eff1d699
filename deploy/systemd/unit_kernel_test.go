//go:build kernel

package systemd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/privilege/privilegetest"
	"github.com/carve-csi/carve/pkg/waittest"
)

const oneClass = "deviceClasses:\n- {name: local, default: true, volumeGroup: carve}\n"

func TestSystemdHasNothingToSayAgainstTheUnit(t *testing.T) {
	install(t, "")
	if out := run(t, "systemd-analyze", "verify", unitPath); out != "" {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	// What it calls exposure, in tenths; it fails where that is more.
	out := run(t, "systemd-analyze", "security", "--no-pager", "--threshold=40", unitName)
	_, overall, _ := strings.Cut(out, "Overall")
	t.Log(overall)
}

func TestWithoutAUsableConfigurationTheStartFailsAndSaysWhy(t *testing.T) {
	install(t, "")
	if out, err := try("systemctl", "start", unitName); err == nil {
		t.Errorf("systemctl start succeeded without a configuration: %s", out)
	}
	is(t, "ActiveState", "inactive")
	configure(t, "deviceClasses:\n- {name: local, colour: red}\n")
	if out, err := try("systemctl", "start", unitName); err == nil {
		t.Errorf("systemctl start succeeded with a mistake in the configuration: %s", out)
	}
	waittest.Until(t, "the journal names the line", func() bool { return strings.Contains(journal(), configPath+":4") }, journalNow)
}

func TestEveryKindOfVolumeIsMadeAndDeletedInTheSandbox(t *testing.T) {
	group(t, "carve", "/dev/vdb")
	install(t, `volumeGroups:
- {name: made, devices: [{path: /dev/vdc}]}
- {name: loop, loopFile: {path: /var/lib/carve/loop/carve.img, size: 256Mi}}
deviceClasses:
- {name: local, default: true, volumeGroup: carve}
- {name: thin, volumeGroup: carve, type: thin, thin: {pool: pool, size: 1Gi}}
- {name: made, volumeGroup: made}
- {name: loop, volumeGroup: loop}
`)
	t.Cleanup(func() {
		run(t, "systemctl", "stop", unitName)
		removeGroup(t, "made", "/dev/vdc")
		loop := run(t, "pvs", "--noheadings", "--options=pv_name", "--select=vg_name=loop")
		removeGroup(t, "loop", loop)
		run(t, "losetup", "--detach", loop)
	})
	run(t, "systemctl", "start", unitName)
	thin := made(t, "create", "thin", "64Mi", "--class=thin")
	ids := []string{
		thin,
		made(t, "create", "ext4", "64Mi"),
		made(t, "create", "xfs", "320Mi", "--fs-type=xfs"),
		made(t, "create", "btrfs", "256Mi", "--fs-type=btrfs"),
		made(t, "create", "raw", "8Mi", "--block"),
		made(t, "create", "encrypted", "64Mi", "--encryption=ephemeral"),
		made(t, "create", "made", "64Mi", "--class=made"),
		made(t, "create", "loop", "64Mi", "--class=loop"),
	}
	snapshot := made(t, "snapshot", "before", thin)
	run(t, "carve-lvmd", "expand", ids[1], "96Mi")
	run(t, "carve-lvmd", "delete-snapshot", snapshot)
	remove(t, ids...)
}

func TestTheServiceFromStartToStop(t *testing.T) {
	group(t, "carve", "/dev/vdb")
	install(t, oneClass)
	run(t, "systemctl", "enable", "--now", unitName)
	// Nothing waits here: it is started when it answers.
	id := made(t, "create", "data", "64Mi")
	is(t, "StatusText", "Serving on "+socketPath)
	dir, unmount := mount(t, "/dev/carve/"+id, "ext4")
	kept := filepath.Join(dir, "kept")
	must.Succeed(t, os.WriteFile(kept, []byte("kept"), 0o600))
	t.Run("the sandbox is closed, but for health and metrics on this machine", testSandbox)
	t.Run("a second lvmd refuses to start", testSecond)
	t.Run("a reload takes the configuration over, or says why not", testReload)
	t.Run("after a crash it is started again", testCrash)
	run(t, "systemctl", "restart", unitName)
	if out := run(t, "carve-lvmd", "volumes"); !strings.Contains(out, id) {
		t.Errorf("after a restart:\n%s", out)
	}
	if content, err := os.ReadFile(kept); err != nil || string(content) != "kept" {
		t.Errorf("the file holds %q, %v", content, err)
	}
	// What was mounted when it started must not be mounted for it for ever.
	unmount()
	remove(t, id)
	run(t, "systemctl", "disable", unitName)
	t.Run("it stops in time while a client watches", testStop)
}

// An administrator's LVM leaves links and nodes of volumes to udev, which has made none of those
// that lvmd's LVM made, and vgcreate refuses the name of a directory in /dev.
func TestNothingInDevOutlivesAVolumeThatAnAdministratorRemoves(t *testing.T) {
	group(t, "carve", "/dev/vdb")
	install(t, oneClass)
	run(t, "systemctl", "start", unitName)
	removed, kept := made(t, "create", "removed", "8Mi", "--block"), made(t, "create", "kept", "8Mi", "--block")
	run(t, "lvremove", "--yes", "carve/"+removed)
	waittest.Until(t, "lvmd has dropped the link and the node", func() bool {
		run(t, "udevadm", "settle")
		return !strings.Contains(strings.Join(inDev(t, "carve"), " "), removed)
	}, func() any { return inDev(t, "carve") })
	if got, want := inDev(t, "carve"), []string{"/dev/carve", "/dev/carve/" + kept, "/dev/mapper/carve-" + kept}; !slices.Equal(got, want) {
		t.Errorf("of the volume that is left, there is %q, want %q", got, want)
	}

	// No lvmd runs any more, and the volume is removed as the documents say.
	run(t, "systemctl", "stop", unitName)
	again := func() {
		run(t, "udevadm", "settle")
		if left := inDev(t, "carve"); len(left) > 0 {
			t.Errorf("after the removal of the group there is %q", left)
		}
		run(t, "vgcreate", "--yes", "carve", "/dev/vdb")
	}
	run(t, "vgremove", "--yes", "--config", "activation/udev_rules=0", "carve")
	again()

	// And as they do not say: the next lvmd drops what is left.
	run(t, "rm", "-r", stateDir) // It knows the group that is gone.
	run(t, "systemctl", "start", unitName)
	made(t, "create", "kept", "8Mi", "--block")
	run(t, "systemctl", "stop", unitName)
	run(t, "vgremove", "--yes", "carve")
	run(t, "udevadm", "settle")
	if len(inDev(t, "carve")) == 0 {
		t.Error("vgremove removed what lvmd's LVM made in /dev: the documents need not say how")
	}
	run(t, "systemctl", "start", unitName)
	again()
}

func testSandbox(t *testing.T) {
	pid := must.Get(strconv.Atoi(property(t, "MainPID")))(t)
	if err := privilegetest.Reduced(pid, lvmd.Capabilities); err != nil {
		t.Error(err)
	}
	// lvmd has nothing left to give up there, which is no failure.
	if out := journal(); strings.Contains(out, "privileges") {
		t.Errorf("the journal has warnings:\n%s", out)
	}
	status := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t)
	if want := "\nSeccomp:\t2\n"; !strings.Contains(string(status), want) {
		t.Errorf("the process has not %q:\n%s", want, status)
	}
	client := &http.Client{
		Timeout:   waitTimeout,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	}
	var answer string
	waittest.Until(t, "https://127.0.0.1:9808/readyz answers", func() bool {
		response, err := client.Get("https://127.0.0.1:9808/readyz")
		if err != nil {
			return false
		}
		body, err := io.ReadAll(response.Body)
		answer = response.Status + " " + string(body)
		return errors.Join(err, response.Body.Close()) == nil
	})
	if !strings.HasPrefix(answer, "200 ") {
		t.Errorf("readyz answers %s", answer)
	}
}

func testSecond(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	elsewhere := t.TempDir()
	for want, more := range map[string][]string{
		"the state directory " + stateDir: nil,
		"LVM's lock directory":            {"--state-dir", elsewhere, "--socket", filepath.Join(elsewhere, "sock")},
	} {
		out, err := exec.CommandContext(ctx, "carve-lvmd", append(more, "--controller=", "--ops-listen=")...).CombinedOutput()
		if err == nil || ctx.Err() != nil || !strings.Contains(string(out), "another lvmd is running with "+want) {
			t.Errorf("with %q: %v: %s", more, err, out)
		}
	}
	run(t, "carve-lvmd", "volumes")
}

func testReload(t *testing.T) {
	pid := property(t, "MainPID")
	configure(t, oneClass+"- {name: second, volumeGroup: carve}\n")
	run(t, "systemctl", "reload", unitName)
	offered := func() bool { return strings.Contains(run(t, "carve-lvmd", "classes"), "\nsecond") }
	waittest.Until(t, "the second class is offered", offered, journalNow)
	configure(t, oneClass+"- {name: second, colour: red}\n")
	if out, err := try("systemctl", "reload", unitName); err == nil {
		t.Errorf("systemctl reload succeeded with a mistake in the file: %s", out)
	}
	waittest.Until(t, "the journal names the line", func() bool { return strings.Contains(journal(), configPath+":5") }, journalNow)
	if !offered() {
		t.Error("the configuration before is not in force")
	}
	is(t, "ActiveState", "active")
	is(t, "MainPID", pid)
	configure(t, oneClass)
}

func testCrash(t *testing.T) {
	pid, err := strconv.Atoi(property(t, "MainPID"))
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the unit is started again", func() bool {
		return property(t, "NRestarts") == "1" && property(t, "ActiveState") == "active"
	})
	run(t, "carve-lvmd", "volumes")
}

// testStop relies on lvmd itself for the time: it ends with an error when it needs longer than 4.5
// seconds. A machine that is too busy for that once is stopped again.
func testStop(t *testing.T) {
	waittest.Succeeds(t, "it stops in time", func() error {
		run(t, "systemctl", "start", unitName)
		watch(t)
		run(t, "systemctl", "stop", unitName)
		if result := property(t, "Result"); result != "success" {
			return fmt.Errorf("the unit's Result is %q\n%s", result, journal())
		}
		return nil
	})
	is(t, "ActiveState", "inactive")
	is(t, "ExecMainStatus", "0")
	if _, err := os.Stat(filepath.Dir(socketPath)); err == nil {
		t.Errorf("%s is still there", filepath.Dir(socketPath))
	}
	if out, err := try("pgrep", "--list-full", "lvm"); err == nil {
		t.Errorf("still running: %s", out)
	}
}

// watch has a client watch until the test ends.
func watch(t *testing.T) {
	t.Helper()
	conn := must.Get(lvmd.Dial(socketPath))(t)
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	t.Cleanup(cancel)
	stream := must.Get(lvmdv1.NewLVMDClient(conn).Watch(ctx, &lvmdv1.WatchRequest{}))(t)
	must.Get(stream.Recv())(t)
}
