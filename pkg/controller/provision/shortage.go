package provision

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/quantity"
	"github.com/carve-csi/carve/pkg/scheduler"
)

// shortageMemory is for how long a node seems too small for a Pod whose claims do
// not fit there together: long enough for the scheduler to choose again.
const shortageMemory = time.Minute

// podLag is for how long a claim with a selected node waits for its Pod to be seen.
const podLag = time.Second

const (
	// lowerWait is for how long a claim waits until the scheduler can see that its node
	// is too small, before it is rescheduled anyway.
	lowerWait = 3 * time.Second
	lowerPoll = 10 * time.Millisecond
	// podPoll is how often is looked for the Pod of a claim.
	podPoll = 10 * time.Millisecond
)

// awaitsPod reports whether the Pod for which the claim's node was selected is not seen yet.
// Claims and Pods come by two watches, so the claim may be first, and which other claims must
// fit beside it is known by the Pod only. A claim may have none, for it can be gone, and other
// programs select nodes, too; so it is not waited for longer than most.
func (l placer) awaitsPod(a *attempt, claim *v1.PersistentVolumeClaim, most time.Duration) bool {
	if l.HasPod(claim) {
		a.podUnseenSince = time.Time{}
		return false
	}
	now := l.Now()
	if a.podUnseenSince.IsZero() {
		a.podUnseenSince = now
	}
	return now.Sub(a.podUnseenSince) < most
}

// findShortage returns why the claims of a Pod cannot be on the node that the scheduler
// selected, though each by itself could: the scheduler judges them one by one. Once one of
// them is bound, the Pod can be nowhere else; so this is found before any of them is made,
// and from then on the node seems too small for a while, lest it be selected again.
//
// What others wait for does not count: of two Pods that want the same space, one can have
// it. The caller has made sure that no create may be in flight.
func (l placer) findShortage(claim *v1.PersistentVolumeClaim, view *fleet.View) *shortage {
	for _, pod := range l.UnplacedPods(claim) {
		if found := l.shortageOf(pod, view); found != nil {
			return found
		}
	}
	return nil
}

// awaitLowered returns after how long to look again whether a node's lowered capacity is
// published, zero when it is. The scheduler watches capacities and claims apart: it must
// see the lower capacity first, or it selects the same node again. The API server has
// shown it to the scheduler, most likely, when it has shown it to us.
func (p *Provisioner) awaitLowered(ctx context.Context, a *attempt, node string) time.Duration {
	now := p.Now()
	if a.shortageSince.IsZero() {
		a.shortageSince = now
	}
	if p.CapacityShown(ctx, node) || now.Sub(a.shortageSince) >= lowerWait {
		return 0
	}
	return lowerPoll
}

// shortageOf returns why the claims of one Pod cannot be on a node together, or nil.
func (l placer) shortageOf(pod *v1.Pod, view *fleet.View) *shortage {
	var demands []scheduler.Demand
	var together []string
	for _, key := range objects.ClaimsNamed(pod) {
		sibling := l.ClaimAt(key)
		if sibling == nil || !cluster.Uses(pod, sibling) {
			continue
		}
		class, ours := l.OurClass(volume.GetPersistentVolumeClaimClass(sibling))
		if !ours || !spec.BindsLate(class) {
			continue
		}
		selected := sibling.Annotations[volume.AnnSelectedNode]
		if _, made := view.ByName[spec.VolumeName(sibling)]; made || sibling.Spec.VolumeName != "" || selected != "" && selected != view.Node {
			return nil // they are bound to somewhere already
		}
		r, err := spec.ParseClaim(sibling, class)
		if err != nil || r.Source != nil {
			continue
		}
		if _, has := view.Class(r.DeviceClass); !has {
			continue // it is rescheduled by itself
		}
		demands = append(demands, scheduler.Demand{Claim: string(sibling.UID), Class: r.DeviceClass, Bytes: r.Footprint()})
		together = append(together, sibling.Name)
	}
	var short *scheduler.ShortError
	if len(demands) < 2 || !errors.As(l.ledger.FitAlone(view.Node, demands), &short) {
		return nil
	}
	found := &shortage{why: fmt.Errorf("the claims %s of Pod %s do not fit on node %s together: beside the others, device class %q has %s left for one that takes %s",
		strings.Join(together, ", "), pod.Name, view.Node, short.Class,
		quantity.Bytes(short.Left), quantity.Bytes(short.Bytes))}
	for _, d := range short.Beside {
		found.reserve = append(found.reserve, scheduler.Reservation{Claim: "pod " + string(pod.UID) + " " + d.Claim + " on " + view.Node, Node: view.Node,
			Class: d.Class, Bytes: d.Bytes, Deadline: l.Now().Add(shortageMemory)})
	}
	return found
}
