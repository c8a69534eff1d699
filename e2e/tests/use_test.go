//go:build e2e

package tests

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPodsOfANodeShareVolumesWithinTheirRights has Pods use claims in every way that
// Kubernetes knows: by subpaths, as a user without rights, read-only, as a raw block
// device, and one Pod alone.
func TestPodsOfANodeShareVolumesWithinTheirRights(t *testing.T) {
	s := beside(t)
	// Two nodes are faster than one.
	shared := podOptions{bytes: 16 * extent, node: s.nodes[0], script: idle}
	single, disk := podOptions{bytes: 16 * extent, node: s.nodes[1], script: idle}, podOptions{bytes: extent, node: s.nodes[1], block: true}
	forOne := claimSpec(single)
	forOne.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	s.createClaim("shared", claimSpec(shared))
	s.createClaim("disk", claimSpec(disk))
	s.createClaim("single", forOne)
	s.create(unprivileged(podOf("user", "shared", shared)), podOf("owner", "disk", disk), podOf("first", "single", single))
	s.running("user", "owner", "first")
	s.exec("owner", "sh", "-c", "printf owner | dd of="+devicePath+" bs=4096 conv=notrunc,sync,fsync 2>/dev/null")
	pastTheScheduler := podOf("third", "single", podOptions{})
	pastTheScheduler.Spec.NodeName = single.node
	s.create(readOnly(podOf("reader", "shared", shared)), readOnly(podOf("viewer", "disk", disk)), thief(podOf("thief", "shared", shared)),
		podOf("second", "single", single), pastTheScheduler)
	s.running("reader", "viewer")

	// fsGroup lets a user without rights write, on the volume and on a folder that the
	// kubelet made for a subpath.
	s.exec("user", "sh", "-c", "echo whole > "+mountPath+"/file && echo part > /part/file")
	if got := strings.TrimSpace(s.exec("user", "stat", "-c", "%u:%g", mountPath+"/file")); got != "1000:2000" {
		t.Errorf("owner of the file that the Pod user made: want 1000:2000, got %s", got)
	}
	s.wantRefused("user", "Read-only file system", "touch", "/mirror/written")

	// Another Pod sees at once what is written, and changes nothing.
	if got := s.exec("reader", "cat", mountPath+"/file", mountPath+"/data/file"); got != "whole\npart\n" {
		t.Errorf("what the Pod reader sees: want whole and part, got %q", got)
	}
	s.wantRefused("reader", "Read-only file system", "touch", mountPath+"/written")

	// A device is not written by who has it read-only, nor through a node that the Pod
	// makes for itself.
	const write = "if=/dev/zero bs=4096 count=1 conv=notrunc,fsync"
	s.exec("viewer", "sh", "-c", "mknod /tmp/own b $(stat -c '0x%t 0x%T' "+devicePath+")")
	for _, path := range []string{devicePath, "/tmp/own"} {
		s.wantRefused("viewer", "Operation not permitted", "sh", "-c", "dd of="+path+" "+write)
		if got := s.exec("viewer", "head", "-c", "5", path); got != "owner" {
			t.Errorf("what the Pod viewer reads from %s: want owner, got %q", path, got)
		}
	}

	// A subpath does not lead out of the volume.
	for _, container := range []string{"link", "below"} {
		// "Failed to prepare subPath" is said of what is there, "to create" of what is not.
		_, err := s.EventWith(s.ctx, waitTimeout, s.namespace, "Pod", "thief", fmt.Sprintf("for volumeMount %q of container %q", "scratch", container))
		s.must(err, "see that the subpath of "+container+" is refused")
	}
	p, err := s.CoreV1().Pods(s.namespace).Get(s.ctx, "thief", metav1.GetOptions{})
	s.must(err, "get the Pod thief")
	for _, status := range p.Status.ContainerStatuses {
		if status.State.Waiting == nil || status.ContainerID != "" {
			t.Errorf("the container %s of the Pod thief: want one that never ran, got %+v", status.Name, status)
		}
	}
	s.node(shared.node, "test", "!", "-e", stolen)

	// The scheduler refuses a second Pod of a volume for one, and so does the kubelet.
	s.schedulerSays("second", "ReadWriteOncePod")
	_, err = s.EventWith(s.ctx, waitTimeout, s.namespace, "Pod", "third", "ReadWriteOncePod")
	s.must(err, "see that the kubelet refuses the Pod third")
}

// unprivileged has a Pod be a user of its own, who uses its volume as a whole, by the
// subpath data, and without the right to write.
func unprivileged(p *corev1.Pod) *corev1.Pod {
	user, group := int64(1000), int64(2000)
	p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user, RunAsGroup: &user, FSGroup: &group}
	app := &p.Spec.Containers[0]
	app.VolumeMounts = append(app.VolumeMounts,
		corev1.VolumeMount{Name: "scratch", MountPath: "/part", SubPath: "data"},
		corev1.VolumeMount{Name: "scratch", MountPath: "/mirror", ReadOnly: true})
	return p
}

// readOnly has a Pod use its claim without the right to write.
func readOnly(p *corev1.Pod) *corev1.Pod {
	p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	return p
}

// stolen is a path on the node that no Pod may make.
const stolen = "/run/e2e-stolen"

// thief has a Pod plant a link on its volume that leads to the node's root, and use it
// as a subpath of two containers.
func thief(p *corev1.Pod) *corev1.Pod {
	plant := p.Spec.Containers[0]
	plant.Name, plant.Command = "plant", []string{"ln", "-s", "/", mountPath + "/out"}
	p.Spec.InitContainers = []corev1.Container{plant}
	link, below := *p.Spec.Containers[0].DeepCopy(), *p.Spec.Containers[0].DeepCopy()
	link.Name, link.VolumeMounts[0].SubPath = "link", "out"
	below.Name, below.VolumeMounts[0].SubPath = "below", "out"+stolen
	p.Spec.Containers = []corev1.Container{link, below}
	return p
}

// wantRefused runs a command in a Pod that has to fail with these words.
func (s *scope) wantRefused(pod, words string, argv ...string) {
	s.Helper()
	if output, err := s.PodExec(s.ctx, s.namespace, pod, argv...); err == nil || !strings.Contains(err.Error(), words) {
		s.Errorf("%s in the Pod %s: want it to fail with %q, got %q, %v", strings.Join(argv, " "), pod, words, output, err)
	}
}
