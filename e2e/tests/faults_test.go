//go:build e2e

package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

// process is a process of one of our programs on a node.
type process struct {
	node, program string
	id            string
}

// containerOf is the name of the container that runs a program.
var containerOf = map[string]string{"carve-controller": "controller", "carve-lvmd": "lvmd", "carve-node": "node"}

// killExitCode is the exit code of a container whose process ended by SIGKILL.
const killExitCode = 128 + 9

// kill ends every process of a program on every node, as the out-of-memory killer would,
// and returns when they are gone. Where the kubelet waits before it starts one again, kill
// waits, too: there is one on every node, or somewhere if it is the controller.
func (s *scope) kill(program string) (killed []process) {
	s.Helper()
	const script = `for p in $(pgrep -f "$0"); do
		kill -KILL "$p" && while [ -e "/proc/$p" ]; do sleep 0.1; done && echo "$p"
	done`
	pending := slices.Clone(s.nodes)
	s.must(carve.Until(s.ctx, recovery, program+" runs, to be killed", func(ctx context.Context) error {
		pending = slices.DeleteFunc(pending, func(node string) bool {
			// If a process has gone since it was found, the others count.
			result, err := s.Cluster.Exec(ctx, node, "sh", "-c", script, "^/usr/local/bin/"+program)
			if err != nil {
				s.Logf("kill %s on %s: %v", program, node, err)
			}
			ids := strings.Fields(result.Stdout)
			for _, id := range ids {
				killed = append(killed, process{node: node, program: program, id: id})
			}
			return len(ids) > 0
		})
		if len(pending) == 0 || program == "carve-controller" && len(killed) > 0 {
			return nil
		}
		return fmt.Errorf("not on %v", pending)
	}), "kill "+program)
	s.Logf("killed %v", killed)
	return killed
}

// replaced waits until other processes run instead of those that were killed, and checks
// that the kubelet saw them end by SIGKILL.
func (s *scope) replaced(killed []process) {
	s.Helper()
	for _, old := range killed {
		s.must(carve.Until(s.ctx, recovery, fmt.Sprintf("another process runs instead of %v", old), func(ctx context.Context) error {
			if old.program == "carve-controller" {
				// Its Pod may have been moved from a node without network.
				return s.newControllers(ctx, killed)
			}
			result, err := s.Cluster.Exec(ctx, old.node, "pgrep", "-f", "^/usr/local/bin/"+old.program)
			if err != nil {
				return err
			}
			if ids := strings.Fields(result.Stdout); len(ids) == 0 || slices.Contains(ids, old.id) {
				return fmt.Errorf("there are %v", ids)
			}
			return s.endedByKill(s.agentOf(old.node), containerOf[old.program])
		}), "have "+old.program+" back")
	}
}

// newControllers reports an error unless every replica of the controller is a process that
// was not killed.
func (s *scope) newControllers(ctx context.Context, killed []process) error {
	deployment, err := s.AppsV1().Deployments(carve.Namespace).Get(ctx, "carve-controller", metav1.GetOptions{})
	if err != nil {
		return err
	}
	running := 0
	for _, node := range s.nodes {
		result, err := s.Cluster.Exec(ctx, node, "pgrep", "-f", "^/usr/local/bin/carve-controller")
		if err != nil {
			return err
		}
		for _, id := range strings.Fields(result.Stdout) {
			running++
			if slices.Contains(killed, process{node: node, program: "carve-controller", id: id}) {
				return fmt.Errorf("the process %s runs on %s, which was killed", id, node)
			}
		}
	}
	if want := int(*deployment.Spec.Replicas); running < want {
		return fmt.Errorf("%d controllers run, want %d", running, want)
	}
	return nil
}

// endedByKill reports an error unless a container was started again after SIGKILL.
func (s *scope) endedByKill(pod corev1.Pod, container string) error {
	for i := range pod.Status.ContainerStatuses {
		status := &pod.Status.ContainerStatuses[i]
		if status.Name != container {
			continue
		}
		last := status.LastTerminationState.Terminated
		if status.RestartCount == 0 || last == nil || last.ExitCode != killExitCode {
			return fmt.Errorf("container %s of %s: %d restarts, the last end was %+v, want one with exit code %d",
				container, pod.Name, status.RestartCount, last, killExitCode)
		}
		return nil
	}
	return fmt.Errorf("the Pod %s has no status of its container %s", pod.Name, container)
}

// TestProcessesKilledInTheMiddleOfABurst kills the programs one after the other
// while volumes are being made for Pods. All Pods run in the end, and what the
// test leaves is compared as always.
func TestProcessesKilledInTheMiddleOfABurst(t *testing.T) {
	s := begin(t)
	var names []string
	var killed []process
	for i := range 8 {
		name := fmt.Sprintf("burst-%d", i)
		s.start(name, podOptions{bytes: 32 * extent})
		names = append(names, name)
		program := map[int]string{2: "carve-controller", 4: "carve-lvmd", 6: "carve-node"}[i]
		if program == "" {
			continue
		}
		s.must(carve.Until(s.ctx, waitTimeout, "a volume of the burst is being made", func(ctx context.Context) error {
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
		killed = append(killed, s.kill(program)...)
	}
	s.running(names...)
	for _, name := range names {
		if got := strings.TrimSpace(s.exec(name, "cat", mountPath+"/marker")); got != name {
			t.Errorf("%s: want its own marker, got %q", name, got)
		}
	}
	s.replaced(killed)
	s.must(s.WaitReady(s.ctx, waitTimeout), "Carve is well again")
}

// TestVolumesComeBackAfterAPowerCut cuts a node's power under a writing Pod.
func TestVolumesComeBackAfterAPowerCut(t *testing.T) {
	s := begin(t)
	victim := s.nodes[1]
	script := "[ -e " + mountPath + "/precious ] || { echo precious-data > " + mountPath + "/precious; sync; }; " +
		"while true; do date >> " + mountPath + "/log; sleep 0.2; done"
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
	const secret = "what no one may read on the disk"
	s.start("keyed", podOptions{class: "e2e-keyed", bytes: 16 * extent, node: victim,
		script: "[ -e " + mountPath + "/secret ] || { echo " + secret + " $(cat /proc/sys/kernel/random/boot_id) > " + mountPath + "/secret; sync; }; exec sleep 1000000"})
	s.running("writer", "forgetful", "keyed")
	if s.diskHolds("keyed", secret) {
		t.Error("the secret of the Pod keyed can be read on the disk")
	}
	s.must(carve.Until(s.ctx, waitTimeout, "the Pod has written", func(ctx context.Context) error {
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
	s.must(carve.Until(s.ctx, waitTimeout, "the Pod runs again", func(ctx context.Context) error {
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
	s.must(carve.Until(s.ctx, waitTimeout, "the volume with a kept key is there", func(ctx context.Context) error {
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
	// user gets an Event.
	s.must(carve.Until(s.ctx, waitTimeout, "the encrypted volume is there", func(ctx context.Context) error {
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
	_, err = s.EventWith(s.ctx, waitTimeout, s.namespace, "Pod", "forgetful", "is empty since")
	s.must(err, "notify the Pod's owner")
	s.must(s.WaitReady(s.ctx, waitTimeout), "Carve is well again")
}

func (s *scope) restarts(pod string) int32 {
	s.Helper()
	p, err := s.CoreV1().Pods(s.namespace).Get(s.ctx, pod, metav1.GetOptions{})
	s.must(err, "get Pod "+pod)
	return p.Status.ContainerStatuses[0].RestartCount
}
