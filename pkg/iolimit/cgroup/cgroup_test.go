//go:build !kernel

package cgroup

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

const uid = "0b3a1c9e-4d57-4b0e-9b7a-3f0c6c1d2e4f"

// hierarchy makes directories like the kernel's cgroups.
func hierarchy(t *testing.T, dirs ...string) Root {
	t.Helper()
	root := t.TempDir()
	write(t, filepath.Join(root, controllers), "cpu io memory")
	for _, dir := range append(dirs, ".") {
		full := filepath.Join(root, dir)
		must.Succeed(t, os.MkdirAll(full, 0o755))
		for at := full; strings.HasPrefix(at, root); at = filepath.Dir(at) {
			write(t, filepath.Join(at, subtreeControl), "io")
		}
	}
	return Root(root)
}

func write(t *testing.T, file, text string) {
	t.Helper()
	must.Succeed(t, os.WriteFile(file, []byte(text), 0o644))
}

func TestPodsAreFoundOfEveryClassAndBothDrivers(t *testing.T) {
	other := strings.Replace(uid, "0b3a", "1c4b", 1)
	low := strings.ReplaceAll(uid, "-", "_")
	for _, c := range []struct{ name, dir string }{
		{"cgroupfs, guaranteed", "kubepods/pod" + uid},
		{"cgroupfs, burstable", "kubepods/burstable/pod" + uid},
		{"cgroupfs, best effort", "kubepods/besteffort/pod" + uid},
		{"cgroupfs, below a root of its own", "kubelet/kubepods/burstable/pod" + uid},
		{"cgroupfs, as deep as it is looked for", "a/b/c/kubepods/pod" + uid},
		{"systemd, guaranteed", "kubepods.slice/kubepods-pod" + low + ".slice"},
		{"systemd, burstable", "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + low + ".slice"},
		{"systemd, best effort", "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + low + ".slice"},
		{"systemd, below a root of its own", "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod" + low + ".slice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := hierarchy(t, c.dir, c.dir+"/container", "system.slice/pod"+other, "kubepods/container/pod"+other, "a/b/c/d/kubepods/pod"+other)
			got, err := root.Pods([]string{uid, other})
			if want := map[string]string{uid: filepath.Join(string(root), c.dir)}; err != nil || !maps.Equal(got, want) {
				t.Errorf("found %v, error %v, want %v", got, err, want)
			}
		})
	}
	if got, err := Root(filepath.Join(t.TempDir(), "none")).Pods([]string{uid}); err != nil || len(got) != 0 {
		t.Errorf("where there is no hierarchy: %v, error %v", got, err)
	}
}

func TestWhatANodeLacksIsSaid(t *testing.T) {
	must.Succeed(t, hierarchy(t).Check())
	without := hierarchy(t)
	write(t, filepath.Join(string(without), controllers), "cpu memory rio\n")
	if err := without.Check(); !errors.Is(err, ErrNoController) {
		t.Errorf("without the controller: %v", err)
	}
	if err := Root(t.TempDir()).Check(); !errors.Is(err, ErrNotV2) {
		t.Errorf("without cgroup v2: %v", err)
	}
}

func TestALimitIsWrittenOnce(t *testing.T) {
	root := hierarchy(t, "kubepods/pod1")
	dir := filepath.Join(string(root), "kubepods/pod1")
	write(t, filepath.Join(dir, ioMax), "8:0 rbps=1 wbps=max riops=max wiops=max\n")
	max := Max{WriteBPS: 1 << 20}
	for i, want := range []bool{true, false} {
		if changed, err := root.Set(dir, "253:1", max); err != nil || changed != want {
			t.Errorf("time %d: changed %t, error %v", i, changed, err)
		}
	}
	if text := string(must.Get(os.ReadFile(filepath.Join(dir, ioMax)))(t)); text != max.line("253:1") {
		t.Errorf("written is %q", text)
	}
	if changed, err := root.Set(dir, "253:1", Max{}); err != nil || !changed {
		t.Errorf("lifted: changed %t, error %v", changed, err)
	}
	if changed, err := root.Set(dir, "253:2", Max{}); err != nil || changed {
		t.Errorf("no limit where there was none: changed %t, error %v", changed, err)
	}
}

func TestWhyALimitIsNotWritten(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, root Root, dir string)
		max     Max
		want    error
	}{
		{"the Pod has ended", func(t *testing.T, _ Root, dir string) { must.Succeed(t, os.RemoveAll(dir)) }, Max{ReadBPS: 1}, ErrNoPod},
		{"the kernel does not throttle", func(*testing.T, Root, string) {}, Max{ReadBPS: 1}, ErrNoThrottling},
		{"it does not, and nothing is limited", func(*testing.T, Root, string) {}, Max{}, nil},
		{"a parent has no controllers", func(t *testing.T, root Root, _ string) {
			must.Succeed(t, os.Remove(filepath.Join(string(root), "kubepods", subtreeControl)))
		}, Max{ReadBPS: 1}, ErrNoController},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := hierarchy(t, "kubepods/pod1")
			dir := filepath.Join(string(root), "kubepods/pod1")
			c.prepare(t, root, dir)
			if changed, err := root.Set(dir, "253:1", c.max); changed || !errors.Is(err, c.want) {
				t.Errorf("changed %t, error %v, want %v", changed, err, c.want)
			}
		})
	}
}

func TestParentsAreMadeToPassTheControllerOn(t *testing.T) {
	root := hierarchy(t, "kubepods/burstable/pod1")
	dir := filepath.Join(string(root), "kubepods/burstable/pod1")
	kubelets := filepath.Join(string(root), "kubepods/burstable", subtreeControl)
	write(t, kubelets, "cpu memory")
	// The kernel would create io.max now.
	if _, err := root.Set(dir, "253:1", Max{ReadBPS: 1}); !errors.Is(err, ErrNoThrottling) {
		t.Fatal(err)
	}
	if text := string(must.Get(os.ReadFile(kubelets))(t)); text != "+io" {
		t.Errorf("%s has %q, want +io", kubelets, text)
	}
	if _, err := root.Set(filepath.Dir(string(root)), "253:1", Max{ReadBPS: 1}); err == nil {
		t.Error("a directory that is not below the root was changed")
	}
}
