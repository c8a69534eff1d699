//go:build e2e

package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
	"github.com/carve-csi/carve/e2e/controlplane"
	"github.com/carve-csi/carve/e2e/kube"
)

// life is a cluster's life at random: Pods and claims come and go while programs,
// the API server and the network fail. It is played by cards, from decks that have
// each kind, so that even a short life has met everything.
type life struct {
	*scope
	random  *rand.Rand
	members []*member
	born    int
	// unplugged is the node without network, "" for none.
	unplugged string
	// killed are the processes that were killed since all was well.
	killed     []process
	monitoring *monitoring
}

// member is a Pod with a volume that holds its name.
type member struct {
	name string
	// claim is what the Pod uses; "" for an ephemeral volume, which goes with the Pod.
	claim string
	// lives is how many Pods there have been, for one claim, one after the other.
	lives int
}

// card is something that happens.
type card struct {
	name string
	// offline is whether it may happen while a node has no network: what waits for
	// a Pod may not, for the Pod may be there.
	offline bool
	play    func(*life)
}

// deck is what happens in one round, in any order.
func deck() []card {
	ephemeral := card{"a Pod with an ephemeral volume", true, func(l *life) { l.bear("") }}
	lasting := card{"a Pod with a claim", true, func(l *life) { l.bear("claim") }}
	leave := card{"a Pod and its volume leave", true, (*life).leave}
	cards := []card{
		ephemeral, ephemeral, ephemeral, lasting, lasting, leave, leave,
		{"a claim's Pod is replaced", false, (*life).replace},
		{"a node is unplugged", true, (*life).unplug},
	}
	for _, component := range []string{kube.APIServer, kube.Scheduler, kube.ControllerManager} {
		cards = append(cards, card{component + " is killed", true, func(l *life) { l.killComponent(component) }})
	}
	for _, program := range []string{"carve-controller", "carve-lvmd", "carve-node"} {
		cards = append(cards, card{program + " is killed everywhere", true, func(l *life) { l.killed = append(l.killed, l.kill(program)...) }})
	}
	return cards
}

const (
	// most bounds how many Pods there are at a time: the nodes are small.
	most = 10
	// recovery bounds the time until all is well: a kubelet waits up to five minutes
	// before it starts a program again that was killed often.
	recovery = 3 * patience
)

// TestARandomLifeLosesAndLeaksNothing plays cards, and looks at the end whether
// every volume has its data; what is left behind is compared as always.
func TestARandomLifeLosesAndLeaksNothing(t *testing.T) {
	s := begin(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(*decks)*30*time.Minute)
	t.Cleanup(cancel)
	s.ctx = ctx
	t.Logf("-args -seed %d -decks %d", *seed, *decks)
	s.storageClass("carve-thin", map[string]string{"carve.csi.local/device-class": "thin", "csi.storage.k8s.io/fstype": "ext4"})
	l := &life{scope: s, random: rand.New(rand.NewPCG(*seed, 0)), monitoring: s.monitoring()} //nolint:gosec // to be repeatable
	t.Cleanup(func() {
		for _, node := range s.nodes {
			if err := s.Cluster.Plug(node); err != nil {
				t.Errorf("plug %s in again: %v", node, err)
			}
		}
	})
	for range *decks {
		cards := deck()
		l.random.Shuffle(len(cards), func(i, j int) { cards[i], cards[j] = cards[j], cards[i] })
		for _, c := range cards {
			if l.unplugged != "" && !c.offline {
				l.plug()
			}
			t.Logf("%s: %s", time.Now().Format(time.TimeOnly), c.name)
			unpluggedBefore := l.unplugged
			c.play(l)
			if unpluggedBefore != "" {
				l.plug()
			}
		}
		l.plug()
		l.check()
	}
}

// bear starts a Pod, with an ephemeral volume or with a claim.
func (l *life) bear(claim string) {
	l.Helper()
	if len(l.members) == most {
		l.leave()
	}
	m := &member{name: fmt.Sprintf("m%d", l.born), lives: 1}
	l.born++
	l.members = append(l.members, m)
	class := []string{"carve", "carve-thin"}[l.random.IntN(2)]
	script := "[ -e " + mountPath + "/marker ] || { echo " + m.name + " > " + mountPath + "/marker && sync; }; exec sleep 1000000"
	if claim == "" {
		l.start(m.name, podOptions{class: class, bytes: int64(8+l.random.IntN(8)) * extent, script: script})
		return
	}
	m.claim = m.name
	l.claim(m.claim, class, int64(8+l.random.IntN(8))*extent)
	l.startWith(m.name, m.claim, script)
}

// leave deletes a Pod, whatever it is doing, and its claim.
func (l *life) leave() {
	l.Helper()
	if len(l.members) == 0 {
		return
	}
	i := l.random.IntN(len(l.members))
	m := l.members[i]
	l.members = slices.Delete(l.members, i, i+1)
	l.must(l.CoreV1().Pods(l.namespace).Delete(l.ctx, m.podName(), metav1.DeleteOptions{}), "delete Pod "+m.podName())
	if m.claim != "" {
		l.must(l.CoreV1().PersistentVolumeClaims(l.namespace).Delete(l.ctx, m.claim, metav1.DeleteOptions{}), "delete claim "+m.claim)
	}
}

// podName is the name of a member's Pod now.
func (m *member) podName() string {
	if m.lives == 1 {
		return m.name
	}
	return fmt.Sprintf("%s-%d", m.name, m.lives)
}

// replace has another Pod use a claim, which finds what the one before wrote.
func (l *life) replace() {
	l.Helper()
	i := slices.IndexFunc(l.members, func(m *member) bool { return m.claim != "" })
	if i < 0 {
		l.bear("claim")
		i = len(l.members) - 1
	}
	m := l.members[i]
	l.must(l.PodsRunning(l.ctx, recovery, l.namespace, m.podName()), "run the claim's first Pod")
	l.holds(m)
	l.remove(m.podName())
	m.lives++
	l.startWith(m.podName(), m.claim, idle)
}

// holds checks that a member's volume has its name.
func (l *life) holds(m *member) {
	l.Helper()
	err := carve.Until(l.ctx, patience, "the volume has its name", func(ctx context.Context) error {
		output, err := l.PodExec(ctx, l.namespace, m.podName(), "cat", mountPath+"/marker")
		if err == nil && strings.TrimSpace(output) != m.name {
			err = fmt.Errorf("it has %q", output)
		}
		return err
	})
	if err != nil {
		l.Errorf("the volume of %s, in its life %d: %v", m.name, m.lives, err)
	}
}

// killComponent kills a component of the control plane, sees that it does not answer, and
// starts it again. While the API server is up, a Pod is created meanwhile.
func (l *life) killComponent(name string) {
	l.Helper()
	plane := l.Cluster.ControlPlane()
	before, err := plane.Processes(name)
	if err != nil || len(before) != 1 {
		l.Fatalf("processes of %s: want one, to be killed, got %v, %v", name, before, err)
	}
	l.must(plane.KillComponent(l.ctx, name), "kill "+name)
	if left, err := plane.Processes(name); err != nil || len(left) > 0 {
		l.Fatalf("processes of %s after it was killed: want none, got %v, %v", name, left, err)
	}
	if err := plane.Healthy(l.ctx, name); err == nil {
		l.Fatalf("%s answers after it was killed", name)
	}
	if name != kube.APIServer {
		l.bear("")
	}
	l.must(plane.StartComponent(l.ctx, name), "start "+name+" again")
	after, err := plane.Processes(name)
	if err != nil || len(after) != 1 || after[0] == before[0] {
		l.Fatalf("processes of %s after it was started again: want one other than %v, got %v, %v", name, before, after, err)
	}
	l.Logf("%s was process %d and is %d", name, before[0], after[0])
}

// unplug takes a node off the network until the next card has been played, but not before
// the controller on another node has noticed.
func (l *life) unplug() {
	l.Helper()
	l.plug()
	victim, observer := l.victim()
	var process string
	l.must(carve.Until(l.ctx, recovery, "every node has an uplink to "+observer.Name, func(ctx context.Context) (err error) {
		var nodes int
		nodes, process, err = l.monitoring.connectedNodes(ctx, observer)
		if err == nil && nodes != len(l.nodes) {
			err = fmt.Errorf("%d of %d nodes have one", nodes, len(l.nodes))
		}
		return err
	}), "wait")
	if err := l.dialAPIServer(l.ctx, victim); err != nil {
		l.Fatalf("%s, which has a network: %v", victim, err)
	}
	l.must(l.Cluster.Unplug(victim), "unplug "+victim)
	l.unplugged = victim
	cut := time.Now()
	if err := l.dialAPIServer(l.ctx, victim); err == nil {
		l.Fatalf("%s reaches the API server without a network", victim)
	}
	l.must(carve.Until(l.ctx, patience, observer.Name+" notices that "+victim+" is gone", func(ctx context.Context) error {
		nodes, now, err := l.monitoring.connectedNodes(ctx, observer)
		if err == nil && (nodes != len(l.nodes)-1 || now != process) {
			err = fmt.Errorf("%d nodes have an uplink to the process started at %s, which was %s", nodes, now, process)
		}
		return err
	}), "wait")
	l.Logf("%s noticed after %v that %s is gone", observer.Name, time.Since(cut).Round(time.Second), victim)
}

// victim returns a node, at random, and a replica of the controller on another node. If all
// replicas run on one node, the victim is another.
func (l *life) victim() (node string, observer *corev1.Pod) {
	l.Helper()
	first := l.random.IntN(len(l.nodes))
	l.must(carve.Until(l.ctx, recovery, "a replica of the controller is ready", func(ctx context.Context) error {
		pods, err := l.ProgramPods(ctx, controllerPods)
		if err != nil {
			return err
		}
		for i := range l.nodes {
			node = l.nodes[(first+i)%len(l.nodes)]
			for j := range pods {
				if observer = &pods[j]; observer.DeletionTimestamp == nil && observer.Spec.NodeName != node && ready(observer) {
					return nil
				}
			}
		}
		return fmt.Errorf("none of %d is", len(pods))
	}), "find a controller")
	return node, observer
}

func ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// dialAPIServer reports whether a process on the node can connect to the API server.
func (l *life) dialAPIServer(ctx context.Context, node string) error {
	endpoint := controlplane.Endpoint()
	result, err := l.Cluster.Exec(ctx, node, "timeout", "10", "bash", "-c",
		fmt.Sprintf("exec 3<>/dev/tcp/%s/%d", endpoint.Addr(), endpoint.Port()))
	l.must(err, "run a command on "+node)
	if result.ExitCode != 0 {
		return fmt.Errorf("connect to %s: exit code %d: %s", endpoint, result.ExitCode, strings.TrimSpace(result.Stderr))
	}
	return nil
}

// plug puts the node that has no network back on it.
func (l *life) plug() {
	l.Helper()
	if l.unplugged == "" {
		return
	}
	node := l.unplugged
	l.must(l.Cluster.Plug(node), "plug "+node+" in again")
	l.must(carve.Until(l.ctx, patience, node+" reaches the API server again", func(ctx context.Context) error {
		return l.dialAPIServer(ctx, node)
	}), "wait")
	l.unplugged = ""
}

// connected waits until every node has an uplink to every replica of the controller.
func (l *life) connected() {
	l.Helper()
	l.must(carve.Until(l.ctx, recovery, "all uplinks are there", func(ctx context.Context) error {
		pods, err := l.ProgramPods(ctx, controllerPods)
		if err != nil {
			return err
		}
		for i := range pods {
			nodes, _, err := l.monitoring.connectedNodes(ctx, &pods[i])
			if err != nil {
				return err
			}
			if nodes != len(l.nodes) {
				return fmt.Errorf("%s has an uplink from %d of %d nodes", pods[i].Name, nodes, len(l.nodes))
			}
		}
		return nil
	}), "wait")
}

// check waits until all is well, and looks at every volume.
func (l *life) check() {
	l.Helper()
	l.replaced(l.killed)
	l.killed = nil
	l.must(l.Settled(l.ctx, recovery), "Carve is well again")
	l.connected()
	var pods []string
	for _, m := range l.members {
		pods = append(pods, m.podName())
	}
	l.must(l.PodsRunning(l.ctx, recovery, l.namespace, pods...), "run the Pods")
	for _, m := range l.members {
		l.holds(m)
	}
}
