package mount

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"

	"github.com/carve-csi/carve/pkg/must"
)

func TestParseGroup(t *testing.T) {
	const (
		pod       = "0b2c7c4e-6f0d-4c1e-9a55-3f0a8d1f2b6c"
		container = "4bb0a3c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f7081"
	)
	for name, test := range map[string]struct{ content, pod, container string }{
		"the systemd driver":        {"0::/../../kubepods-burstable-pod" + strings.ReplaceAll(pod, "-", "_") + ".slice/cri-containerd-" + container + ".scope\n", pod, container},
		"the cgroupfs driver":       {"0::/kubepods/besteffort/pod" + pod + "/" + container + "\n", pod, container},
		"control groups, version 1": {"12:pids:/kubepods/pod" + pod + "/" + container + "\n11:cpu:/kubepods/pod" + pod + "/" + container + "\n", pod, container},
		"a service of the host":     {"0::/system.slice/ssh.service\n", "", ""},
		"nothing":                   {"", "", ""},
	} {
		if gotPod, gotContainer := ParseGroup(test.content); gotPod != test.pod || gotContainer != test.container {
			t.Errorf("%s: got %q, %q", name, gotPod, gotContainer)
		}
	}
}

func fakeProc(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		must.Succeed(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		must.Succeed(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return dir
}

func TestHoldersFailWhereTheHostIsNotSeen(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		seen  bool
	}{
		"a container's own processes":  {map[string]string{"self/status": "NSpid:\t7\n", "2/comm": "sh\n"}, false},
		"the host's, from a container": {map[string]string{"self/status": "Name:\tx\nNSpid:\t4711\t7\n"}, true},
		"the host's, on the host":      {map[string]string{"self/status": "NSpid:\t4711\n", "2/comm": "kthreadd\n"}, true},
		"nothing":                      {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := System{Proc: fakeProc(t, test.files)}.Holders(Device{Major: 250, Minor: 1}, "")
			if seen := !errors.Is(err, ErrHostUnseen); seen != test.seen || test.seen && err != nil {
				t.Errorf("seen is %t, %v", seen, err)
			}
		})
	}
}

// TestWhatGoesWithAMount has mount tables of the node plugin, the host, an
// agent that receives mounts, one that has captured them, and a container that
// uses the volume, each with two processes.
func TestWhatGoesWithAMount(t *testing.T) {
	const published = "/var/lib/kubelet/pods/uid/volumes/v/mount"
	own := "10 1 0:40 / / rw - overlay o rw\n" +
		"11 10 8:1 /var/lib/kubelet/pods /var/lib/kubelet/pods rw shared:1 - ext4 /dev/sda1 rw\n" +
		"12 11 250:1 / " + published + " rw shared:9 - ext4 /dev/v rw\n"
	host := "20 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n" +
		"21 20 250:1 / " + published + " rw shared:9 - ext4 /dev/v rw\n"
	receiving := "30 1 0:41 / / rw - overlay o rw\n" +
		"31 30 8:1 / /host rw master:1 - ext4 /dev/sda1 rw\n" +
		"32 31 250:1 / /host" + published + " rw master:9 - ext4 /dev/v rw\n"
	captured := "40 1 0:42 / / rw - overlay o rw\n" +
		"41 40 8:1 / /host rw - ext4 /dev/sda1 rw\n" +
		"42 41 250:1 / /host" + published + " rw - ext4 /dev/v rw\n"
	container := "50 1 0:43 / / rw - overlay o rw\n" +
		"51 50 250:1 / /data rw - ext4 /dev/v rw\n"
	files := map[string]string{}
	for pid, table := range map[string]string{"1": host, "2": host, "30": receiving, "31": receiving, "40": captured, "41": captured, "50": container, "51": container} {
		files[pid+"/mountinfo"] = table
	}
	files["2/comm"], files["self/status"] = "kthreadd\n", "NSpid:\t1\n"
	system := System{Proc: fakeProc(t, files)}
	_, others, err := system.namespaces()
	must.Succeed(t, err)
	if len(others) != 4 {
		t.Errorf("%d namespaces, want 4", len(others))
	}
	goes := goingWith(must.Get(mountinfo.GetMountsFromReader(strings.NewReader(own), nil))(t), others, published)
	var stay []string
	for _, other := range others {
		for _, m := range other.mounts {
			if shows(m, Device{Major: 250, Minor: 1}) && !goes(other.mounts, m) {
				stay = append(stay, m.Mountpoint)
			}
		}
	}
	if want := []string{"/host" + published, "/data"}; !slices.Equal(stay, want) {
		t.Errorf("these stay: %q, want %q", stay, want)
	}
}
