//go:build e2e

package tests

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

// TestAVolumeThatExistsIsGivenToAClaim makes volumes that no PersistentVolume knows,
// one by hand and one that its class retains, and has claims adopt them.
func TestAVolumeThatExistsIsGivenToAClaim(t *testing.T) {
	s := begin(t)
	node := s.nodes[0]

	// What a class retains stays on its node when all its objects are gone.
	s.start("first", podOptions{bytes: 8 * extent, node: node, script: "echo precious > " + mountPath + "/kept && sync && exec sleep 1000000"})
	s.running("first")
	claim := s.claimOf("first-scratch")
	name := claim.Spec.VolumeName
	pv, err := s.CoreV1().PersistentVolumes().Get(s.ctx, name, metav1.GetOptions{})
	s.must(err, "get the PersistentVolume")
	s.exec("first", "cat", mountPath+"/kept")
	_, err = s.Kubectl(s.ctx, nil, "patch", "pv", name, "--patch", `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
	s.must(err, "retain the volume")
	s.remove("first")
	s.must(carve.Until(s.ctx, waitTimeout, "the volume is released", func(ctx context.Context) error {
		now, err := s.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		if err == nil && now.Status.Phase != corev1.VolumeReleased {
			err = fmt.Errorf("it is %s", now.Status.Phase)
		}
		return err
	}), "wait")
	s.must(s.CoreV1().PersistentVolumes().Delete(s.ctx, name, metav1.DeleteOptions{}), "delete the PersistentVolume")
	s.gone("the PersistentVolume", func(ctx context.Context) error {
		_, err := s.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		return err
	})
	handle := pv.Spec.CSI.VolumeHandle
	if listed := s.lvmd(node, "volumes"); !strings.Contains(listed, handle) || !strings.Contains(listed, s.namespace+"/first-scratch") {
		t.Fatalf("volumes of %s: want %s with its claim, got\n%s", node, handle, listed)
	}

	// Another is made by hand.
	s.lvmd(node, "create", "by-hand", "32Mi", "--fs-type", "ext4")
	byHand := ""
	for line := range strings.Lines(s.lvmd(node, "volumes")) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[1] == "by-hand" {
			byHand = fields[0]
		}
	}

	for claim, handle := range map[string]string{"kept": handle, "made": byHand} {
		s.adopt(claim, handle, node)
		s.startWith(claim, claim, "touch "+mountPath+"/seen && exec sleep 1000000")
		s.running(claim)
		if got := s.nodeOf(claim); got != node {
			t.Errorf("%s: want it on %s, got %s", claim, node, got)
		}
	}
	if got := strings.TrimSpace(s.exec("kept", "cat", mountPath+"/kept")); got != "precious" {
		t.Errorf("the adopted volume: want precious, got %q", got)
	}
	// Both go with their claims, for their PersistentVolumes say Delete: what is left
	// is compared as always.
}

// agentOf returns the node agent's Pod on a node.
func (s *scope) agentOf(node string) corev1.Pod {
	s.Helper()
	pods, err := s.ProgramPods(s.ctx, agentPods)
	s.must(err, "find the agent of "+node)
	pods = slices.DeleteFunc(pods, func(pod corev1.Pod) bool { return pod.Spec.NodeName != node })
	if len(pods) != 1 {
		s.Fatalf("agents of %s: want 1, got %d", node, len(pods))
	}
	return pods[0]
}

// lvmd runs a subcommand of lvmd in its container on a node.
func (s *scope) lvmd(node string, arguments ...string) string {
	s.Helper()
	output, err := s.Kubectl(s.ctx, nil, append([]string{
		"exec", "--namespace", carve.Namespace, s.agentOf(node).Name, "--container", "lvmd", "--", "carve-lvmd",
	}, arguments...)...)
	s.must(err, "carve-lvmd "+strings.Join(arguments, " "))
	return output
}

// adopt writes a PersistentVolume for a volume that exists, and a claim for it.
func (s *scope) adopt(claim, handle, node string) {
	s.Helper()
	class, size := "carve", corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(8*extent, resource.BinarySI)}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	_, err := s.CoreV1().PersistentVolumes().Create(s.ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: s.namespace + "-" + claim, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": carve.Driver}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, StorageClassName: class,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef:                      &corev1.ObjectReference{Namespace: s.namespace, Name: claim},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: carve.Driver, VolumeHandle: handle, FSType: "ext4",
			}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: "topology.carve.csi.local/node", Operator: corev1.NodeSelectorOpIn, Values: []string{node},
				}},
			}}}},
		},
	}, metav1.CreateOptions{})
	s.must(err, "write a PersistentVolume for "+handle)
	_, err = s.CoreV1().PersistentVolumeClaims(s.namespace).Create(s.ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: claim},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, StorageClassName: &class, VolumeName: s.namespace + "-" + claim,
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	s.must(err, "write claim "+claim)
}
