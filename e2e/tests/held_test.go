//go:build e2e

package tests

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

// TestAPodThatKeepsAnotherOnesVolumeMountedIsNamed has an agent that mounts a Pod's volume
// by its path on the host. Of the kubelet's whole directory it would not do: the kernel
// detaches a copy when the kubelet removes the directory below it.
func TestAPodThatKeepsAnotherOnesVolumeMountedIsNamed(t *testing.T) {
	s := beside(t)
	o := podOptions{bytes: 16 * extent, node: s.nodes[0]}
	s.createClaim("held", claimSpec(o))
	s.create(podOf("first", "held", o))
	s.running("first")
	pv, err := s.CoreV1().PersistentVolumes().Get(s.ctx, s.claimOf("held").Spec.VolumeName, metav1.GetOptions{})
	s.must(err, "get the claim's PersistentVolume")
	first, err := s.CoreV1().Pods(s.namespace).Get(s.ctx, "first", metav1.GetOptions{})
	s.must(err, "get the Pod first")
	s.create(agentWithHostPath(o.node, "/var/lib/kubelet/pods/"+string(first.UID)+"/volumes/kubernetes.io~csi/"+pv.Name+"/mount"))
	s.running("agent")
	agent, err := s.CoreV1().Pods(s.namespace).Get(s.ctx, "agent", metav1.GetOptions{})
	s.must(err, "get the Pod agent")

	s.remove("first")
	s.must(carve.Until(s.ctx, waitTimeout, "the volume is unstaged", func(context.Context) error {
		if strings.Contains(s.node(o.node, "cat", "/proc/1/mountinfo"), pv.Spec.CSI.VolumeHandle) {
			return errors.New("it is mounted on the host")
		}
		return nil
	}), "unstage")
	s.create(podOf("second", "held", podOptions{node: o.node, script: idle}))
	_, err = s.EventWith(s.ctx, waitTimeout, s.namespace, "Pod", "second", "of Pod "+string(agent.UID)+" in container ")
	s.must(err, "see that the agent is named")
	s.remove("agent")
	s.running("second")
	if got := s.exec("second", "cat", mountPath+"/marker"); got != "first\n" {
		t.Errorf("what the first Pod wrote: got %q", got)
	}
}

// agentWithHostPath returns a Pod without a volume of Carve that mounts a path of its node.
func agentWithHostPath(node, path string) *corev1.Pod {
	p := pod("agent", podOptions{node: node, script: idle})
	p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}
	return p
}
