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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
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
		{"the API server is killed", true, (*life).killAPIServer},
		{"a node is unplugged", true, (*life).unplug},
	}
	for _, program := range []string{"carve-controller", "carve-lvmd", "carve-node"} {
		cards = append(cards, card{program + " is killed everywhere", true, func(l *life) { l.kill(program) }})
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
	l := &life{scope: s, random: rand.New(rand.NewPCG(*seed, 0))} //nolint:gosec // to be repeatable
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
	class := []string{"carve", "carve-pmem"}[l.random.IntN(2)]
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

// killAPIServer kills it, and has it come back.
func (l *life) killAPIServer() {
	l.Helper()
	plane := l.Cluster.ControlPlane()
	l.must(plane.KillComponent(l.ctx, "kube-apiserver"), "kill the API server")
	l.must(plane.StartComponent(l.ctx, "kube-apiserver"), "start the API server again")
}

// unplug takes a node off the network until the next card has been played.
func (l *life) unplug() {
	l.Helper()
	l.plug()
	l.unplugged = l.nodes[l.random.IntN(len(l.nodes))]
	l.must(l.Cluster.Unplug(l.unplugged), "unplug "+l.unplugged)
}

func (l *life) plug() {
	l.Helper()
	if l.unplugged != "" {
		l.must(l.Cluster.Plug(l.unplugged), "plug "+l.unplugged+" in again")
		l.unplugged = ""
	}
}

// check waits until all is well, and looks at every volume.
func (l *life) check() {
	l.Helper()
	l.must(l.Settled(l.ctx, recovery), "Carve is well again")
	var pods []string
	for _, m := range l.members {
		pods = append(pods, m.podName())
	}
	l.must(l.PodsRunning(l.ctx, recovery, l.namespace, pods...), "run the Pods")
	for _, m := range l.members {
		l.holds(m)
	}
}
