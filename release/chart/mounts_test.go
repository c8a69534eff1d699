package chart_test

import (
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// byPrograms are the files and directories that programs use and that the reference of flags does not name, by container.
var byPrograms = map[string][]string{
	"lvmd": {
		"/dev",                         // the devices of volume groups and volumes
		"/run/lvm",                     // LVM's state while it runs
		"/run/lock/lvm",                // LVM's locks, and lvmd's
		"/etc/carve/uplink/ca.crt",     // the CA of the controller's certificate
		"/var/run/secrets/carve/token", // the token for the controller
		"/tmp",                         // temporary files
	},
	"node": {
		"/dev",          // the volumes' devices
		"/csi/csi.sock", // the socket that the kubelet calls
		"/registration", // where the kubelet looks for plugins
		"/run/carve/lvmd.sock",
		"/run/cryptsetup", // cryptsetup's locks
		"/tmp",            // temporary files
	},
	"io-limits": {"/host/cgroup", "/run/carve-io-limits"},
}

// flagRow is a flag in a page of docs/reference, which is generated from the program's code.
var flagRow = regexp.MustCompile("(?m)^\\| `--([a-z-]+)` \\| (?:`([^`]*)`)? *\\|")

// flagsOf returns the values of the flags that a container's program has, those with default ones
// included.
func flagsOf(t *testing.T, c *corev1.Container) map[string]string {
	t.Helper()
	program, command := path.Base(c.Command[0]), strings.Join(c.Command[1:], " ")
	page, err := os.ReadFile(filepath.Join(root, "docs/reference", program+".md"))
	if err != nil {
		t.Fatal(err)
	}
	text, commands, _ := strings.Cut(string(page), "\n## Commands\n")
	if command != "" {
		_, text, _ = strings.Cut(commands, "### "+program+" "+command+"\n")
		text, _, _ = strings.Cut(text, "\n### ")
	}
	flags := map[string]string{}
	for _, row := range flagRow.FindAllStringSubmatch(text, -1) {
		flags[row[1]] = row[2]
	}
	for _, arg := range c.Args {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if _, known := flags[name]; !known {
			t.Errorf("container %s: %s has no flag --%s", c.Name, program, name)
		}
		flags[name] = value
	}
	return flags
}

// isBelow reports whether a path is a directory, or lies in it.
func isBelow(file, dir string) bool {
	return file == dir || strings.HasPrefix(file, strings.TrimSuffix(dir, "/")+"/")
}

// TestTheAgentsMountsAreWhatItsProgramsNeed compares the mounts of the node agent with the paths
// that its programs have by their flags.
func TestTheAgentsMountsAreWhatItsProgramsNeed(t *testing.T) {
	for name, text := range map[string]string{
		"the base":        "resources: [../base]\n",
		"with I/O limits": "resources: [../base]\ncomponents: [../components/io-limits]\n",
	} {
		t.Run(name, func(t *testing.T) {
			agent := &appsv1.DaemonSet{}
			object := kustomization(t, text)["DaemonSet.apps/"+namespace+"/carve-node"]
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, agent); err != nil {
				t.Fatal(err)
			}
			pod := &agent.Spec.Template.Spec
			volumes, unused := map[string]corev1.Volume{}, map[string]bool{}
			for _, v := range pod.Volumes {
				volumes[v.Name], unused[v.Name] = v, true
			}
			for i := range pod.Containers {
				c := &pod.Containers[i]
				for _, m := range c.VolumeMounts {
					delete(unused, m.Name)
				}
				checkMounts(t, c, volumes)
			}
			if len(unused) > 0 {
				t.Errorf("no container mounts the volumes %q", slices.Sorted(maps.Keys(unused)))
			}
		})
	}
}

func checkMounts(t *testing.T, c *corev1.Container, volumes map[string]corev1.Volume) {
	t.Helper()
	flags := flagsOf(t, c)
	kubelet := flags["kubelet-dir"]
	delete(flags, "kubelet-dir") // a path of the host
	needed := slices.Clone(byPrograms[c.Name])
	for name, value := range flags {
		if !strings.HasPrefix(value, "/") {
			continue
		}
		needed = append(needed, value)
		// A directory may itself be there for the sake of mounts below it.
		if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return isBelow(value, m.MountPath) || isBelow(m.MountPath, value) }) {
			t.Errorf("container %s: --%s=%s is in no mount", c.Name, name, value)
		}
	}
	for _, m := range c.VolumeMounts {
		v, ok := volumes[m.Name]
		if !ok {
			t.Errorf("container %s mounts %s, which the Pod does not have", c.Name, m.Name)
			continue
		}
		ofKubelet := kubelet != "" && isBelow(m.MountPath, kubelet)
		if !ofKubelet && !slices.ContainsFunc(needed, func(file string) bool { return isBelow(file, m.MountPath) || isBelow(m.MountPath, file) }) {
			t.Errorf("container %s: nothing uses %s", c.Name, m.MountPath)
		}
		// What is mounted on volumes' paths must be seen by the kubelet, and under the path that it gives.
		want := corev1.MountPropagationNone
		if ofKubelet {
			want = corev1.MountPropagationBidirectional
			if v.HostPath == nil || v.HostPath.Path != m.MountPath {
				t.Errorf("container %s: %s is elsewhere on the host", c.Name, m.MountPath)
			}
		}
		got := corev1.MountPropagationNone
		if m.MountPropagation != nil {
			got = *m.MountPropagation
		}
		if got != want {
			t.Errorf("container %s: %s has the propagation %s, want %s", c.Name, m.MountPath, got, want)
		}
		if want := isOnlyRead(c, m, v, flags); m.ReadOnly != want {
			t.Errorf("container %s: %s is read-only: %t, want %t", c.Name, m.MountPath, m.ReadOnly, want)
		}
		if want := kubelet + "/plugins/carve.csi.local"; m.MountPath == "/csi" && v.HostPath.Path != want {
			t.Errorf("container %s: the kubelet looks for the socket in %s: it is in %s", c.Name, want, v.HostPath.Path)
		}
	}
	if kubelet != "" {
		for _, dir := range []string{"/pods", "/plugins/kubernetes.io/csi"} { // published, and staged
			if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == kubelet+dir }) {
				t.Errorf("container %s does not have %s", c.Name, kubelet+dir)
			}
		}
	}
}

// isOnlyRead reports whether a program only reads what is mounted.
func isOnlyRead(c *corev1.Container, m corev1.VolumeMount, v corev1.Volume, flags map[string]string) bool {
	switch {
	case v.ConfigMap != nil, v.Secret != nil, v.Projected != nil, m.MountPath == flags["host-proc"]:
		return true
	case v.Name == "io-limits-requests": // from the node plugin to io-limits
		return c.Name == "io-limits"
	case v.Name == "io-limits-reports": // the other way
		return c.Name == "node"
	}
	return false
}
