//go:build e2e

package tests

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

// TestAVolumeGoesWithWhatItsPodMountedBelowIt has a Pod that mounts a tmpfs in its volume, and whose
// termination log is in it: both are mounts below the kubelet's own.
func TestAVolumeGoesWithWhatItsPodMountedBelowIt(t *testing.T) {
	s := beside(t)
	p := privileged(pod("nested", podOptions{
		bytes: 16 * extent, node: s.nodes[0], script: fmt.Sprintf("mkdir %[1]s/sub && busybox mount -t tmpfs none %[1]s/sub && touch %[1]s/done && %s", mountPath, idle),
	}))
	both := corev1.MountPropagationBidirectional
	p.Spec.Containers[0].VolumeMounts[0].MountPropagation = &both
	p.Spec.Containers[0].TerminationMessagePath = mountPath + "/termination-log"
	s.create(p)
	s.running("nested")
	s.has("nested", mountPath+"/done")
	s.remove("nested")
	s.noVolumes()
}

// TestAFrozenVolumeIsUsedByTheNextPod has a Pod that freezes its volume and ends, as a backup does that is
// killed in the middle.
func TestAFrozenVolumeIsUsedByTheNextPod(t *testing.T) {
	s := beside(t)
	o := podOptions{bytes: 16 * extent, node: s.nodes[0]}
	s.createClaim("frozen", claimSpec(o))
	freezing := o
	freezing.script = fmt.Sprintf("touch %[1]s/done && sync && fsfreeze -f %[1]s && %s", mountPath, idle)
	s.create(privileged(podOf("first", "frozen", freezing)))
	s.running("first")
	s.has("first", mountPath+"/done")
	s.must(carve.Until(s.ctx, waitTimeout, "the file system is frozen", func(ctx context.Context) error {
		_, err := s.PodExec(ctx, s.namespace, "first", "pidof", "sleep")
		return err
	}), "freeze the volume")
	s.remove("first")
	s.create(podOf("second", "frozen", o))
	s.running("second")
	s.wantMarker("second")
	s.remove("second")
}

// TestADeletedVolumeWaitsForAnAdministratorsSnapshot has an administrator make an LVM snapshot of a volume
// whose Pod and claim go.
func TestADeletedVolumeWaitsForAnAdministratorsSnapshot(t *testing.T) {
	s := beside(t)
	node := s.nodes[1]
	s.start("copied", podOptions{bytes: 16 * extent, node: node})
	s.running("copied")
	pv, err := s.CoreV1().PersistentVolumes().Get(s.ctx, s.claimOf("copied-scratch").Spec.VolumeName, metav1.GetOptions{})
	s.must(err, "get the claim's PersistentVolume")
	const backup = "carve/administrators-backup"
	taken := false
	drop := func(ctx context.Context) {
		if _, err := s.NodeExec(ctx, node, "lvremove", "--yes", backup); taken && err != nil {
			t.Errorf("remove the snapshot: %v", err)
		}
		taken = false
	}
	s.Cleanup(func() { drop(context.Background()) })
	s.node(node, "lvcreate", "--snapshot", "--extents", "4", "--name", strings.TrimPrefix(backup, "carve/"), "carve/"+pv.Spec.CSI.VolumeHandle)
	taken = true
	s.remove("copied")
	_, err = s.EventWith(s.ctx, waitTimeout, metav1.NamespaceDefault, "PersistentVolume", pv.Name, backup)
	s.must(err, "see what the deletion waits for")
	if got := s.node(node, "lvs", "--noheadings", "--options", "lv_attr", backup); strings.HasPrefix(strings.TrimSpace(got), "S") {
		t.Errorf("the snapshot is no longer valid: %s", got)
	}
	drop(s.ctx)
	s.noVolumes()
}

// privileged lets the container of a Pod mount and freeze file systems.
func privileged(p *corev1.Pod) *corev1.Pod {
	yes := true
	p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
	return p
}

// has waits until a Pod has a file.
func (s *scope) has(pod, file string) {
	s.Helper()
	s.must(carve.Until(s.ctx, waitTimeout, pod+" has "+file, func(ctx context.Context) error {
		_, err := s.PodExec(ctx, s.namespace, pod, "test", "-e", file)
		return err
	}), "wait for a file")
}
