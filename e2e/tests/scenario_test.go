//go:build e2e

package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/carve-csi/carve/e2e/carve"
	"github.com/carve-csi/carve/e2e/controlplane"
	"github.com/carve-csi/carve/e2e/kube"
)

// scenario is a random one: Pods and claims come and go while programs, the API server
// and the network fail. It consists of events, from schedules that have each kind, so
// that even a short one has met everything.
type scenario struct {
	*scope
	random  *rand.Rand
	members []*member
	made    int
	// unplugged is the node without network, "" for none.
	unplugged string
	// killed are the processes that were killed since all was well.
	killed     []process
	monitoring *monitoring
	// starting is held by who kills and starts components of the control plane.
	starting sync.Mutex
}

// member is a Pod with a volume that holds its name.
type member struct {
	name string
	// claim is what the Pod uses; "" for an ephemeral volume, which goes with the Pod.
	claim string
	// pods is how many Pods there have been, for one claim, one after the other.
	pods int
}

// event is something that happens.
type event struct {
	name string
	// offline is whether it may happen while a node has no network: what waits for
	// a Pod may not, for the Pod may be there.
	offline bool
	run     func(*scenario)
}

// schedule is what happens in one round, in any order.
func schedule() []event {
	ephemeral := event{"a Pod with an ephemeral volume", true, func(r *scenario) { r.add("") }}
	lasting := event{"a Pod with a claim", true, func(r *scenario) { r.add("claim") }}
	leave := event{"a Pod and its volume leave", true, (*scenario).leave}
	events := []event{
		ephemeral, ephemeral, ephemeral, lasting, lasting, leave, leave,
		{"a claim's Pod is replaced", false, (*scenario).replace},
		{"a node is unplugged", true, (*scenario).unplug},
	}
	for _, component := range killable {
		events = append(events, event{component + " is killed", true, func(r *scenario) { r.killComponent(component) }})
	}
	for _, program := range []string{"carve-controller", "carve-lvmd", "carve-node"} {
		events = append(events, event{program + " is killed everywhere", true, func(r *scenario) { r.killed = append(r.killed, r.kill(program)...) }})
	}
	return events
}

// killable are the components of the control plane that are killed.
var killable = []string{kube.APIServer, kube.Scheduler, kube.ControllerManager}

const (
	// most bounds how many Pods there are at a time: the nodes are small.
	most = 10
	// recovery bounds the time until all is well: a kubelet waits up to five minutes
	// before it starts a program again that was killed often.
	recovery = 3 * waitTimeout
)

// TestARandomScenarioLosesAndLeaksNothing runs its events, and looks at the end whether
// every volume has its data; what is left behind is compared as always.
func TestARandomScenarioLosesAndLeaksNothing(t *testing.T) {
	s := begin(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(*schedules)*30*time.Minute)
	t.Cleanup(cancel)
	s.ctx = ctx
	t.Logf("-args -seed %d -schedules %d", *seed, *schedules)
	s.storageClass("carve-thin", map[string]string{"carve.csi.local/device-class": "thin", "csi.storage.k8s.io/fstype": "ext4"})
	r := &scenario{scope: s, random: rand.New(rand.NewPCG(*seed, 0)), monitoring: s.monitoring()} //nolint:gosec // to be repeatable
	t.Cleanup(func() {
		for _, node := range s.nodes {
			if err := s.Cluster.Plug(node); err != nil {
				t.Errorf("plug %s in again: %v", node, err)
			}
		}
	})
	r.keepRunning()
	for range *schedules {
		events := schedule()
		r.random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		for _, e := range events {
			if r.unplugged != "" && !e.offline {
				r.plug()
			}
			t.Logf("%s: %s", time.Now().Format(time.TimeOnly), e.name)
			unpluggedBefore := r.unplugged
			e.run(r)
			if unpluggedBefore != "" {
				r.plug()
			}
		}
		r.plug()
		r.check()
	}
}

// add starts a Pod, with an ephemeral volume or with a claim.
func (r *scenario) add(claim string) {
	r.Helper()
	if len(r.members) == most {
		r.leave()
	}
	m := &member{name: fmt.Sprintf("m%d", r.made), pods: 1}
	r.made++
	r.members = append(r.members, m)
	class := []string{"carve", "carve-thin"}[r.random.IntN(2)]
	script := "[ -e " + mountPath + "/marker ] || { echo " + m.name + " > " + mountPath + "/marker && sync; }; exec sleep 1000000"
	if claim == "" {
		r.start(m.name, podOptions{class: class, bytes: int64(8+r.random.IntN(8)) * extent, script: script})
		return
	}
	m.claim = m.name
	r.claim(m.claim, class, int64(8+r.random.IntN(8))*extent)
	r.startWith(m.name, m.claim, script)
}

// leave deletes a Pod, whatever it is doing, and its claim.
func (r *scenario) leave() {
	r.Helper()
	if len(r.members) == 0 {
		return
	}
	i := r.random.IntN(len(r.members))
	m := r.members[i]
	r.members = slices.Delete(r.members, i, i+1)
	r.must(r.CoreV1().Pods(r.namespace).Delete(r.ctx, m.podName(), metav1.DeleteOptions{}), "delete Pod "+m.podName())
	if m.claim != "" {
		r.must(r.CoreV1().PersistentVolumeClaims(r.namespace).Delete(r.ctx, m.claim, metav1.DeleteOptions{}), "delete claim "+m.claim)
	}
}

// podName is the name of a member's Pod now.
func (m *member) podName() string {
	if m.pods == 1 {
		return m.name
	}
	return fmt.Sprintf("%s-%d", m.name, m.pods)
}

// replace has another Pod use a claim, which finds what the one before wrote.
func (r *scenario) replace() {
	r.Helper()
	i := slices.IndexFunc(r.members, func(m *member) bool { return m.claim != "" })
	if i < 0 {
		r.add("claim")
		i = len(r.members) - 1
	}
	m := r.members[i]
	r.must(r.PodsRunning(r.ctx, recovery, r.namespace, m.podName()), "run the claim's first Pod")
	r.holds(m)
	r.remove(m.podName())
	m.pods++
	r.startWith(m.podName(), m.claim, idle)
}

// holds checks that a member's volume has its name.
func (r *scenario) holds(m *member) {
	r.Helper()
	err := carve.Until(r.ctx, waitTimeout, "the volume has its name", func(ctx context.Context) error {
		output, err := r.PodExec(ctx, r.namespace, m.podName(), "cat", mountPath+"/marker")
		if err == nil && strings.TrimSpace(output) != m.name {
			err = fmt.Errorf("it has %q", output)
		}
		return err
	})
	if err != nil {
		r.Errorf("the volume of %s, with its Pod %d: %v", m.name, m.pods, err)
	}
}

// killComponent kills a component of the control plane, sees that it does not answer, and
// starts it again. While the API server is up, a Pod is created meanwhile.
func (r *scenario) killComponent(name string) {
	r.Helper()
	plane := r.Cluster.ControlPlane()
	r.starting.Lock()
	defer r.starting.Unlock()
	r.must(plane.StartComponent(r.ctx, name), "have "+name+" run")
	before, err := plane.Processes(name)
	if err != nil || len(before) != 1 {
		r.Fatalf("processes of %s: want one, to be killed, got %v, %v", name, before, err)
	}
	r.must(plane.KillComponent(r.ctx, name), "kill "+name)
	if left, err := plane.Processes(name); err != nil || len(left) > 0 {
		r.Fatalf("processes of %s after it was killed: want none, got %v, %v", name, left, err)
	}
	if err := plane.Healthy(r.ctx, name); err == nil {
		r.Fatalf("%s answers after it was killed", name)
	}
	if name != kube.APIServer {
		r.add("")
	}
	r.must(plane.StartComponent(r.ctx, name), "start "+name+" again")
	after, err := plane.Processes(name)
	if err != nil || len(after) != 1 || after[0] == before[0] {
		r.Fatalf("processes of %s after it was started again: want one other than %v, got %v, %v", name, before, after, err)
	}
	r.Logf("%s was process %d and is %d", name, before[0], after[0])
}

// keepRunning starts components of the control plane that ended by themselves, as a kubelet does:
// kube-controller-manager ends when the API server is killed while it starts.
func (r *scenario) keepRunning() {
	ctx, cancel := context.WithCancel(r.ctx)
	var watching sync.WaitGroup
	watching.Go(func() { wait.UntilWithContext(ctx, r.startEnded, time.Second) })
	r.Cleanup(func() {
		cancel()
		watching.Wait()
	})
}

// startEnded starts the components of the control plane again that do not run.
func (r *scenario) startEnded(ctx context.Context) {
	r.starting.Lock()
	defer r.starting.Unlock()
	plane := r.Cluster.ControlPlane()
	for _, name := range killable {
		running, err := plane.Running(name)
		if err == nil && running || ctx.Err() != nil {
			continue
		}
		r.Logf("%s ended by itself; starting it again: %v", name, errors.Join(err, plane.StartComponent(ctx, name)))
	}
}

// unplug takes a node off the network until the next event is over, but not before
// the controller on another node has noticed.
func (r *scenario) unplug() {
	r.Helper()
	r.plug()
	victim, observer := r.victim()
	var process string
	r.must(carve.Until(r.ctx, recovery, "every node has an uplink to "+observer.Name, func(ctx context.Context) (err error) {
		var nodes int
		nodes, process, err = r.monitoring.connectedNodes(ctx, observer)
		if err == nil && nodes != len(r.nodes) {
			err = fmt.Errorf("%d of %d nodes have one", nodes, len(r.nodes))
		}
		return err
	}), "wait")
	r.must(carve.Until(r.ctx, waitTimeout, victim+" reaches the API server", func(ctx context.Context) error {
		return r.dialAPIServer(ctx, victim)
	}), "wait")
	r.must(r.Cluster.Unplug(victim), "unplug "+victim)
	r.unplugged = victim
	cut := time.Now()
	if err := r.dialAPIServer(r.ctx, victim); err == nil {
		r.Fatalf("%s reaches the API server without a network", victim)
	}
	r.must(carve.Until(r.ctx, waitTimeout, observer.Name+" notices that "+victim+" is gone", func(ctx context.Context) error {
		nodes, now, err := r.monitoring.connectedNodes(ctx, observer)
		if err == nil && (nodes != len(r.nodes)-1 || now != process) {
			err = fmt.Errorf("%d nodes have an uplink to the process started at %s, which was %s", nodes, now, process)
		}
		return err
	}), "wait")
	r.Logf("%s noticed after %v that %s is gone", observer.Name, time.Since(cut).Round(time.Second), victim)
}

// victim returns a node, at random, and a replica of the controller on another node. If all
// replicas run on one node, the victim is another.
func (r *scenario) victim() (node string, observer *corev1.Pod) {
	r.Helper()
	first := r.random.IntN(len(r.nodes))
	r.must(carve.Until(r.ctx, recovery, "a replica of the controller is ready", func(ctx context.Context) error {
		pods, err := r.ProgramPods(ctx, controllerPods)
		if err != nil {
			return err
		}
		for i := range r.nodes {
			node = r.nodes[(first+i)%len(r.nodes)]
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
func (r *scenario) dialAPIServer(ctx context.Context, node string) error {
	endpoint := controlplane.Endpoint()
	result, err := r.Cluster.Exec(ctx, node, "timeout", "10", "bash", "-c",
		fmt.Sprintf("exec 3<>/dev/tcp/%s/%d", endpoint.Addr(), endpoint.Port()))
	r.must(err, "run a command on "+node)
	if result.ExitCode != 0 {
		return fmt.Errorf("connect to %s: exit code %d: %s", endpoint, result.ExitCode, strings.TrimSpace(result.Stderr))
	}
	return nil
}

// plug puts the node that has no network back on it.
func (r *scenario) plug() {
	r.Helper()
	if r.unplugged == "" {
		return
	}
	node := r.unplugged
	r.must(r.Cluster.Plug(node), "plug "+node+" in again")
	r.must(carve.Until(r.ctx, waitTimeout, node+" reaches the API server again", func(ctx context.Context) error {
		return r.dialAPIServer(ctx, node)
	}), "wait")
	r.unplugged = ""
}

// connected waits until every node has an uplink to every replica of the controller.
func (r *scenario) connected() {
	r.Helper()
	r.must(carve.Until(r.ctx, recovery, "all uplinks are there", func(ctx context.Context) error {
		pods, err := r.ProgramPods(ctx, controllerPods)
		if err != nil {
			return err
		}
		for i := range pods {
			nodes, _, err := r.monitoring.connectedNodes(ctx, &pods[i])
			if err != nil {
				return err
			}
			if nodes != len(r.nodes) {
				return fmt.Errorf("%s has an uplink from %d of %d nodes", pods[i].Name, nodes, len(r.nodes))
			}
		}
		return nil
	}), "wait")
}

// check waits until all is well, and looks at every volume.
func (r *scenario) check() {
	r.Helper()
	r.replaced(r.killed)
	r.killed = nil
	r.must(r.WaitReady(r.ctx, recovery), "Carve is well again")
	r.connected()
	var pods []string
	for _, m := range r.members {
		pods = append(pods, m.podName())
	}
	r.must(r.PodsRunning(r.ctx, recovery, r.namespace, pods...), "run the Pods")
	for _, m := range r.members {
		r.holds(m)
	}
}
