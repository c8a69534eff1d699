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

// shortageMemory is the time for which a node seems too small for a Pod: enough for the
// scheduler to choose again.
const shortageMemory = time.Minute

// podLag bounds the wait for the Pod of a claim with a selected node.
const podLag = time.Second

const (
	lowerWait = 3 * time.Second
	lowerPoll = 10 * time.Millisecond
	podPoll   = 10 * time.Millisecond
)

// awaitsPod reports whether to wait for the Pod of a claim with a selected node. Claims and
// Pods come by two watches, so the claim may be first, and only the Pod names the claims that
// must fit beside it. Some claims have no Pod: it is gone, or another program selected the
// node. Hence the limit most.
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

// findShortage finds Pods whose claims do not fit on the selected node together, though each
// does alone: the scheduler judges them one by one. It must run before any of them is created,
// as the first bound claim pins the Pod. Then the node seems too small for a while, so that it
// is not selected again.
//
// Reservations of others do not count: of two Pods that want the same space, one can have it.
// The caller ensures that no create may be in flight.
func (l placer) findShortage(claim *v1.PersistentVolumeClaim, view *fleet.View) *shortage {
	for _, pod := range l.UnplacedPods(claim) {
		if found := l.shortageOf(pod, view); found != nil {
			return found
		}
	}
	return nil
}

// awaitLowered returns the time until the next check of the node's lowered capacity, or zero
// once it is published. The scheduler watches capacities and claims separately: unless it sees
// the lower capacity first, it selects the same node again. A capacity that the API server
// shows us it has most likely shown to the scheduler.
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

// shortageOf returns nil if the claims fit, or some are bound to a node already.
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
