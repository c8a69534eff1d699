//go:build e2e

package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
	"github.com/carve-csi/carve/e2e/vm/agent"
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

// holdLVM has every command of LVM on these nodes wait that would change the volume group or read
// it: volumes that are being made meanwhile stay in their middle until release is called.
func (s *scope) holdLVM(nodes ...string) (release func()) {
	s.Helper()
	// LVM removes the file of a lock that it lets go of. Who has the lock of a file that is gone
	// has nothing.
	const script = `cd /run/lock/lvm
		until exec 9>V_carve && flock 9 && [ V_carve -ef /proc/self/fd/9 ]; do :; done
		echo held && exec sleep 1000000`
	ctx, cancel := context.WithCancel(s.ctx)
	var holders sync.WaitGroup
	release = func() { cancel(); holders.Wait() }
	s.Cleanup(release)
	for _, node := range nodes {
		output, printed := io.Pipe()
		holders.Go(func() {
			code, err := s.Cluster.Run(ctx, node, agent.Command{Argv: []string{"sh", "-ec", script}, Stdout: printed, Stderr: printed})
			printed.CloseWithError(fmt.Errorf("exit code %d, error %w", code, err))
		})
		text := make([]byte, len("held"))
		if _, err := io.ReadFull(output, text); err != nil || string(text) != "held" {
			s.Fatalf("hold LVM's lock on %s: %q, %v", node, text, err)
		}
		go io.Copy(io.Discard, output)
	}
	return release
}

// beingMade waits until so many claims wait for a volume on the node that was selected for them.
func (s *scope) beingMade(claims int) {
	s.Helper()
	s.must(carve.Until(s.ctx, waitTimeout, "volumes are being made", func(ctx context.Context) error {
		if making, _ := s.claimsUnderWay(ctx); making < claims {
			return fmt.Errorf("%d claims wait for a volume on the node that was selected", making)
		}
		return nil
	}), "wait")
}

// TestProcessesKilledInTheMiddleOfABurst kills the programs one after the other
// while volumes are being made for Pods: LVM's lock keeps them from being finished
// before. All Pods run in the end, and what the test leaves is compared as always.
func TestProcessesKilledInTheMiddleOfABurst(t *testing.T) {
	s := begin(t)
	var names []string
	var killed []process
	for i := range 8 {
		program := map[int]string{2: "carve-controller", 4: "carve-lvmd", 6: "carve-node"}[i]
		release := func() {}
		if program != "" {
			release = s.holdLVM(s.nodes...)
		}
		name := fmt.Sprintf("burst-%d", i)
		s.start(name, podOptions{bytes: 32 * extent})
		names = append(names, name)
		if program != "" {
			s.beingMade(1)
			killed = append(killed, s.kill(program)...)
		}
		release()
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

// TestAPodLeavesANodeWhoseLVMHangs has the scheduler choose a node on which every command of LVM waits
// until lvmd kills it. The Pod runs on the other node, and the first one serves again when LVM answers.
func TestAPodLeavesANodeWhoseLVMHangs(t *testing.T) {
	s := begin(t)
	s.lvmdEnds(`lvmd: invalid argument "soon" for "--lvm-timeout" flag`, "--lvm-timeout=soon")
	s.agentArguments("lvmd", "--lvm-timeout=10s")
	s.capacityIsPublished()
	hanging, other := s.nodes[0], s.nodes[1]
	release := s.holdLVM(hanging)
	s.create(preferring(hanging, pod("moved", podOptions{bytes: 16 * extent})))
	event, err := s.EventWith(s.ctx, waitTimeout, s.namespace, "PersistentVolumeClaim", "moved-scratch", "the scheduler is asked for another node")
	s.must(err, "see that the claim leaves the node")
	if want := "node " + hanging + ": LVM has not answered"; !strings.Contains(event.Message, want) {
		t.Errorf("the claim's Event is %q, want in it %q", event.Message, want)
	}
	s.running("moved")
	if got := s.nodeOf("moved"); got != other {
		t.Errorf("the Pod runs on %s, want %s", got, other)
	}
	s.wantMarker("moved")
	s.must(carve.Until(s.ctx, waitTimeout, "no capacity of the node is published", func(ctx context.Context) error {
		return s.wantCapacity(ctx, hanging, 0)
	}), "withdraw the capacity")
	for _, object := range []string{"pod/moved", "pvc/moved-scratch"} {
		text, err := s.Kubectl(s.ctx, nil, "describe", "--namespace", s.namespace, object)
		s.must(err, "describe "+object)
		t.Logf("kubectl describe %s\n%s", object, text)
	}

	release()
	s.capacityIsPublished()
	s.create(preferring(hanging, pod("back", podOptions{bytes: 16 * extent})))
	s.running("back")
	if got := s.nodeOf("back"); got != hanging {
		t.Errorf("after LVM answers again, the Pod runs on %s, want %s", got, hanging)
	}
}

// lvmdEnds has lvmd start with an argument that it refuses, and waits until kubectl describe shows why it ended.
func (s *scope) lvmdEnds(why, argument string) {
	s.Helper()
	const object, container = "daemonset/carve-node", "lvmd"
	agents, err := s.AppsV1().DaemonSets(carve.Namespace).Get(s.ctx, "carve-node", metav1.GetOptions{})
	s.must(err, "get the agents' DaemonSet")
	containers := agents.Spec.Template.Spec.Containers
	i := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == container })
	before := containers[i].Args
	// What s.ctx ends must be put back, too.
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		s.setArguments(ctx, object, i, before)
	}()
	s.setArguments(s.ctx, object, i, slices.Concat(before, []string{argument}))
	var ended string
	s.must(carve.Until(s.ctx, waitTimeout, "a container's status has why lvmd ended", func(ctx context.Context) error {
		pods, err := s.ProgramPods(ctx, agentPods)
		if err != nil {
			return err
		}
		var messages []string
		for _, p := range pods {
			for _, status := range p.Status.ContainerStatuses {
				for _, state := range []corev1.ContainerState{status.State, status.LastTerminationState} {
					if status.Name != container || state.Terminated == nil {
						continue
					}
					if strings.Contains(state.Terminated.Message, why) {
						ended = p.Name
						return nil
					}
					messages = append(messages, state.Terminated.Message)
				}
			}
		}
		return fmt.Errorf("of %d Pods, the messages are %q, want in one %q", len(pods), messages, why)
	}), "see why lvmd ended")
	text, err := s.Kubectl(s.ctx, nil, "describe", "--namespace", carve.Namespace, "pod/"+ended)
	s.must(err, "describe pod/"+ended)
	if !strings.Contains(text, why) {
		s.Errorf("kubectl describe pod/%s shows %s\nwant in it %q", ended, text, why)
	}
}

// preferring has the scheduler prefer a node for a Pod.
func preferring(node string, p *corev1.Pod) *corev1.Pod {
	named := corev1.NodeSelectorRequirement{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
		Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{named}},
	}}}}
	return p
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
