//go:build e2e

package tests

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
	"github.com/carve-csi/carve/e2e/cluster"
)

// TestAKubeletWithADirectoryOfItsOwn installs the chart with deploy/platforms/k0s.yaml on a cluster whose
// kubelet has its files where that of k0s has. In the end it removes Carve as docs/how-to/upgrade.md says:
// the cluster has never had another Carve, so that all files which are left are found.
func TestAKubeletWithADirectoryOfItsOwn(t *testing.T) {
	const kubeletDir = "/var/lib/k0s/kubelet"
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	other := *name + "-kubelet"
	down := func() {
		if err := cluster.Down(context.Background(), other, t.Output()); err != nil {
			t.Fatal(err)
		}
	}
	down() // What an aborted run has left.
	t.Cleanup(down)
	c, err := cluster.Up(ctx, cluster.Options{Name: other, Nodes: 1, KubeletDir: kubeletDir, Progress: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	of, err := carve.NewClient(c)
	if err != nil {
		t.Fatal(err)
	}
	s := &scope{T: t, Client: of, ctx: ctx, namespace: metav1.NamespaceDefault, nodes: c.NodeNames(), started: time.Now()}
	t.Cleanup(func() {
		if t.Failed() {
			s.describe()
			s.Diagnose(context.Background(), t.Output())
		}
	})
	s.must(s.LoadImages(ctx, t.Output()), "load the images")
	node := s.nodes[0]
	before, err := s.Footprint(ctx, node)
	s.must(err, "look at the node")
	files := s.filesOf(node, kubeletDir)
	helm := s.buildHelm()
	s.helm(helm, "install", "carve", "../../deploy/chart/carve", "--namespace", carve.Namespace, "--create-namespace", "--wait", "--timeout", "5m",
		"--values", "../../deploy/platforms/k0s.yaml", "--set", "image.repository=carve.csi.local/carve,image.tag=dev", "--set", "inlineVolumes.enabled=true")
	s.must(s.WaitReady(ctx, waitTimeout), "Carve is ready")
	_, err = s.Kubectl(ctx, nil, "label", "namespace", s.namespace, inlineVolumes+"=allowed")
	s.must(err, "allow inline volumes")

	s.start("files", podOptions{bytes: 16 * extent})
	s.start("device", podOptions{bytes: 16 * extent, block: true})
	inline := pod("inline", podOptions{})
	inline.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
		Driver: carve.Driver, VolumeAttributes: map[string]string{carve.Driver + "/size": "64Mi"},
	}}
	s.create(inline)
	s.running("files", "device", "inline")
	s.wantMarker("files")
	s.wantMarker("inline")
	mounts := s.node(node, "cat", "/proc/mounts")
	if !strings.Contains(mounts, " "+kubeletDir+"/plugins/kubernetes.io/csi/"+carve.Driver+"/") || !strings.Contains(mounts, " "+kubeletDir+"/pods/") {
		t.Errorf("nothing is mounted below %s:\n%s", kubeletDir, mounts)
	}
	if usual := strings.Fields(s.node(node, "ls", "-A", "/var/lib/kubelet")); slices.Contains(usual, "plugins") || slices.Contains(usual, "pods") {
		t.Errorf("in /var/lib/kubelet are %q", usual)
	}

	// The agent finds again what it mounted.
	s.must(s.CoreV1().Pods(carve.Namespace).Delete(ctx, s.agentOf(node).Name, metav1.DeleteOptions{}), "delete the agent")
	s.must(s.WaitReady(ctx, waitTimeout), "Carve is ready again")
	s.wantMarker("files")
	s.remove("files", "device", "inline")
	s.noVolumes()
	s.must(carve.Until(ctx, waitTimeout, "nothing is left on the node", func(ctx context.Context) error {
		after, err := s.Footprint(ctx, node)
		if err == nil && !slices.Equal(before, after) {
			err = fmt.Errorf("it has %q, had %q", after, before)
		}
		return err
	}), "look at the node")
	s.helm(helm, "uninstall", "carve", "--namespace", carve.Namespace, "--wait", "--timeout", "5m")
	_, err = s.Kubectl(ctx, nil, "delete", "namespace", carve.Namespace)
	s.must(err, "remove the namespace")
	s.must(s.nothingOfCarve(ctx), "remove the chart")
	s.node(node, "rm", "-r", "/var/lib/carve", "/run/carve", kubeletDir+"/plugins/"+carve.Driver, "/run/lock/lvm/carve-lvmd")
	// Directories that the kubelet made for volumes, and one that cryptsetup makes on many nodes.
	s.node(node, "find", kubeletDir+"/plugins/kubernetes.io", "/run/cryptsetup", "-depth", "-type", "d", "-empty", "-delete")
	for _, file := range s.filesOf(node, kubeletDir) {
		if !slices.Contains(files, file) {
			t.Errorf("left on the node is %s", file)
		}
	}
}

// filesOf lists a node's files, but for those of Pods, containers and their network.
func (s *scope) filesOf(node, kubeletDir string) []string {
	s.Helper()
	return strings.Split(s.node(node, "find", "/etc", "/home", "/opt", "/root", "/run", "/srv", "/usr", "/var", "(",
		"-path", kubeletDir+"/pods", "-o", "-path", "/var/lib/containerd", "-o", "-path", "/run/containerd", "-o", "-path", "/run/netns", "-o",
		"-path", "/var/lib/cni", "-o", "-path", "/var/log", ")", "-prune", "-o", "-print"), "\n")
}
