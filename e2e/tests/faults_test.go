//go:build e2e

package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

// killed ends every process of a program on every node, as the out-of-memory
// killer would.
func (s *scope) killed(program string) {
	s.Helper()
	if s.kill(program) == 0 {
		s.Fatalf("no node runs %s", program)
	}
}

// kill does so, and tells on how many nodes there was one: the kubelet may be
// waiting before it starts one again.
func (s *scope) kill(program string) (hit int) {
	s.Helper()
	for _, node := range s.nodes {
		result, err := s.Cluster.Exec(s.ctx, node, "pkill", "-KILL", "-f", "^/usr/local/bin/"+program)
		s.must(err, "kill "+program+" on "+node)
		if result.ExitCode == 0 {
			hit++
		}
	}
	return hit
}

// TestProcessesKilledInTheMiddleOfABurst kills the programs one after the other
// while volumes are being made for Pods. All Pods run in the end, and what the
// test leaves is compared as always.
func TestProcessesKilledInTheMiddleOfABurst(t *testing.T) {
	s := begin(t)
	var names []string
	for i := range 8 {
		name := fmt.Sprintf("burst-%d", i)
		s.start(name, podOptions{bytes: 32 * extent})
		names = append(names, name)
		program := map[int]string{2: "carve-controller", 4: "carve-lvmd", 6: "carve-node"}[i]
		if program == "" {
			continue
		}
		s.must(carve.Until(s.ctx, patience, "a volume of the burst is being made", func(ctx context.Context) error {
			claims, err := s.CoreV1().PersistentVolumeClaims(s.namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, claim := range claims.Items {
				if claim.Annotations["volume.kubernetes.io/selected-node"] != "" && claim.Status.Phase == corev1.ClaimPending {
					return nil
				}
			}
			return fmt.Errorf("of %d claims, none that waits has a selected node", len(claims.Items))
		}), "wait until "+program+" is needed")
		s.killed(program)
	}
	s.running(names...)
	for _, name := range names {
		if got := strings.TrimSpace(s.exec(name, "cat", mountPath+"/marker")); got != name {
			t.Errorf("%s: want its own marker, got %q", name, got)
		}
	}
	s.must(s.Settled(s.ctx, patience), "Carve is well again")
}

// TestVolumesComeBackAfterAPowerCut cuts a node's power under a writing Pod.
func TestVolumesComeBackAfterAPowerCut(t *testing.T) {
	s := begin(t)
	victim := s.nodes[1]
	script := "[ -e " + mountPath + "/precious ] || { echo precious-data > " + mountPath + "/precious; sync; }; " +
		"while true; do date >> " + mountPath + "/log; done"
	s.start("writer", podOptions{bytes: 64 * extent, node: victim, script: script})
	s.storageClass("e2e-forgetful", map[string]string{"carve.csi.local/encryption": "ephemeral"})
	s.start("forgetful", podOptions{class: "e2e-forgetful", bytes: 16 * extent, node: victim,
		script: "ls " + mountPath + " && touch " + mountPath + "/$(cat /proc/sys/kernel/random/boot_id) && sync && exec sleep 1000000"})
	_, err := s.CoreV1().Secrets(s.namespace).Create(s.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "volume-key"}, Data: map[string][]byte{"key": []byte("0123456789abcdef0123456789abcdef")},
	}, metav1.CreateOptions{})
	s.must(err, "make the Secret with a key")
	s.storageClass("e2e-keyed", map[string]string{
		"carve.csi.local/encryption":                     "luks",
		"csi.storage.k8s.io/node-stage-secret-name":      "volume-key",
		"csi.storage.k8s.io/node-stage-secret-namespace": "${pvc.namespace}",
	})
	const secret = "what nobody may read on the disk"
	s.start("keyed", podOptions{class: "e2e-keyed", bytes: 16 * extent, node: victim,
		script: "[ -e " + mountPath + "/secret ] || { echo " + secret + " $(cat /proc/sys/kernel/random/boot_id) > " + mountPath + "/secret; sync; }; exec sleep 1000000"})
	s.running("writer", "forgetful", "keyed")
	if s.diskHolds("keyed", secret) {
		t.Error("the secret of the Pod keyed can be read on the disk")
	}
	s.must(carve.Until(s.ctx, patience, "the Pod has written", func(ctx context.Context) error {
		output, err := s.PodExec(ctx, s.namespace, "writer", "cat", mountPath+"/precious")
		if err == nil && strings.TrimSpace(output) != "precious-data" {
			err = fmt.Errorf("got %q", output)
		}
		return err
	}), "write")
	s.exec("writer", "sync")
	restarts := s.restarts("writer")
	bootID := strings.TrimSpace(s.node(victim, "cat", "/proc/sys/kernel/random/boot_id"))

	s.must(s.Cluster.Kill(s.ctx, victim), "cut the power")
	s.must(s.Cluster.Start(s.ctx, victim), "switch on again")

	if got := strings.TrimSpace(s.node(victim, "cat", "/proc/sys/kernel/random/boot_id")); got == bootID {
		t.Fatalf("%s did not boot anew", victim)
	}
	s.must(carve.Until(s.ctx, patience, "the Pod runs again", func(ctx context.Context) error {
		p, err := s.CoreV1().Pods(s.namespace).Get(ctx, "writer", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].RestartCount <= restarts || p.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("phase %s, statuses %v", p.Status.Phase, p.Status.ContainerStatuses)
		}
		return nil
	}), "restart")
	if got := strings.TrimSpace(s.exec("writer", "cat", mountPath+"/precious")); got != "precious-data" {
		t.Errorf("the data written before the power cut: want precious-data, got %q", got)
	}
	// An encrypted volume whose key is in a Secret holds what it held.
	s.must(carve.Until(s.ctx, patience, "the volume with a kept key is there", func(ctx context.Context) error {
		output, err := s.PodExec(ctx, s.namespace, "keyed", "cat", "/proc/sys/kernel/random/boot_id", mountPath+"/secret")
		if err == nil && strings.HasPrefix(output, bootID) {
			err = errors.New("the Pod is that of before")
		}
		if want := secret + " " + bootID; err == nil && !strings.Contains(output, want) {
			t.Errorf("the encrypted volume with a kept key: want %q, got %q", want, output)
		}
		return err
	}), "wait")
	// An encrypted volume, whose key only the kernel had, comes back empty, and its
	// user is told.
	s.must(carve.Until(s.ctx, patience, "the encrypted volume is there", func(ctx context.Context) error {
		output, err := s.PodExec(ctx, s.namespace, "forgetful", "ls", mountPath)
		if err != nil {
			return err
		}
		now := strings.TrimSpace(s.node(victim, "cat", "/proc/sys/kernel/random/boot_id"))
		if !strings.Contains(output, now) {
			return fmt.Errorf("the Pod has not written since: %q", output)
		}
		if strings.Contains(output, bootID) {
			t.Errorf("the encrypted volume still holds what it held: %q", output)
		}
		return nil
	}), "wait")
	_, err = s.EventWith(s.ctx, patience, s.namespace, "Pod", "forgetful", "is empty since")
	s.must(err, "tell the Pod's owner")
	s.must(s.Settled(s.ctx, patience), "Carve is well again")
}

func (s *scope) restarts(pod string) int32 {
	s.Helper()
	p, err := s.CoreV1().Pods(s.namespace).Get(s.ctx, pod, metav1.GetOptions{})
	s.must(err, "get Pod "+pod)
	return p.Status.ContainerStatuses[0].RestartCount
}
