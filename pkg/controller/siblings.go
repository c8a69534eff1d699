package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/scheduler"
)

// byClaim is the index of Pods by the claims that they name, as namespace/name.
const byClaim = "claim"

// misfitHold is for how long a node seems too small for a Pod whose claims do
// not fit there together: long enough for the scheduler to choose again.
const misfitHold = time.Minute

const (
	// lowerWait is for how long a claim waits until the scheduler can see that its node
	// is too small, before it is rescheduled anyway.
	lowerWait = 3 * time.Second
	lowerPoll = 10 * time.Millisecond
)

// unscheduledPods watches the Pods that have no node yet: a Pod gets one when all
// its claims are bound, and leaves. Of each, no more is kept than which claims it
// names.
func unscheduledPods(all informers.SharedInformerFactory) cache.SharedIndexInformer {
	return all.InformerFor(&v1.Pod{}, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		return coreinformers.NewFilteredPodInformer(client, metav1.NamespaceAll, resync, cache.Indexers{byClaim: claimIndexer}, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", "").String()
		})
	})
}

// claimsOnly drops all of a Pod but its identity and the claims that it names.
func claimsOnly(obj any) (any, error) {
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return obj, nil
	}
	lean := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, DeletionTimestamp: pod.DeletionTimestamp,
	}, Spec: v1.PodSpec{NodeName: pod.Spec.NodeName}}
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			lean.Spec.Volumes = append(lean.Spec.Volumes, v1.Volume{Name: v.Name, VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: v.PersistentVolumeClaim.ClaimName}}})
		case v.Ephemeral != nil:
			lean.Spec.Volumes = append(lean.Spec.Volumes, v1.Volume{Name: v.Name, VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}})
		}
	}
	return lean, nil
}

// claimsNamed are the claims that a Pod names, each once, as namespace/name.
func claimsNamed(pod *v1.Pod) []string {
	var keys []string
	for i := range pod.Spec.Volumes {
		switch v := &pod.Spec.Volumes[i]; {
		case v.PersistentVolumeClaim != nil:
			keys = append(keys, pod.Namespace+"/"+v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			keys = append(keys, pod.Namespace+"/"+ephemeral.VolumeClaimName(pod, v))
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func claimIndexer(obj any) ([]string, error) {
	if pod, ok := obj.(*v1.Pod); ok {
		return claimsNamed(pod), nil
	}
	return nil, nil
}

// misfit tells why the claims of a Pod cannot be on the node that the scheduler
// chose, though each by itself could: it judges them one by one. Once one of them
// is bound, the Pod can be nowhere else; so this is found out before any of them is
// made, and from then on the node seems too small for a while, lest it be chosen
// again.
//
// What others wait for does not count: of two Pods that want the same room, one
// can have it.
func (p *provisioner) misfit(a *attempt, claim *v1.PersistentVolumeClaim, view *fleet.View) error {
	if a.inDoubt() {
		return nil
	}
	pods, err := p.pods.GetIndexer().ByIndex(byClaim, claim.Namespace+"/"+claim.Name)
	if err != nil {
		return nil //nolint:nilerr // there is the index
	}
	for _, obj := range pods {
		pod, ok := obj.(*v1.Pod)
		if !ok || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
			continue
		}
		if err := p.misfitOf(pod, view); err != nil {
			return err
		}
	}
	return nil
}

// awaitLowered returns after how long to look again whether a node's lowered capacity is
// published, zero when it is. The scheduler watches capacities and claims apart: it must
// see the lower capacity first, or it selects the same node again. The API server has
// shown it to the scheduler, most likely, when it has shown it to us.
func (p *provisioner) awaitLowered(ctx context.Context, a *attempt, node string) time.Duration {
	now := p.now()
	if a.misfitSince.IsZero() {
		a.misfitSince = now
	}
	if p.capacityShown(ctx, node) || now.Sub(a.misfitSince) >= lowerWait {
		return 0
	}
	return lowerPoll
}

// misfitOf tells why the claims of one Pod cannot be on a node together.
func (p *provisioner) misfitOf(pod *v1.Pod, view *fleet.View) error {
	var demands []scheduler.Demand
	var together []string
	for _, key := range claimsNamed(pod) {
		obj, exists, err := p.claims.GetIndexer().GetByKey(key)
		sibling, ok := obj.(*v1.PersistentVolumeClaim)
		if err != nil || !exists || !ok {
			continue
		}
		class, ours := p.ourClass(volume.GetPersistentVolumeClaimClass(sibling))
		if !ours || !delayed(class) {
			continue
		}
		selected := sibling.Annotations[volume.AnnSelectedNode]
		if _, made := view.ByName[volumeName(sibling)]; made || sibling.Spec.VolumeName != "" || selected != "" && selected != view.Node {
			return nil // they are bound to somewhere already
		}
		r, err := parseClaim(sibling, class)
		if err != nil || r.source != nil {
			continue
		}
		if _, has := view.Class(r.deviceClass); !has {
			continue // it is handed back by itself
		}
		demands = append(demands, demandOf(sibling, r))
		together = append(together, sibling.Name)
	}
	var short *scheduler.ShortError
	if len(demands) < 2 || !errors.As(p.ledger.FitAlone(view.Node, demands), &short) {
		return nil
	}
	for _, d := range short.Beside {
		for _, changed := range p.ledger.Reserve(scheduler.Reservation{Claim: "pod " + string(pod.UID) + " " + d.Claim + " on " + view.Node, Node: view.Node,
			Class: d.Class, Bytes: d.Bytes, Deadline: p.now().Add(misfitHold)}) {
			p.roomChanged(changed)
		}
	}
	return fmt.Errorf("the claims %s of Pod %s do not fit on node %s together: beside the others, device class %q has %s left for one that takes %s",
		strings.Join(together, ", "), pod.Name, view.Node, short.Class,
		resource.NewQuantity(short.Left, resource.BinarySI), resource.NewQuantity(short.Bytes, resource.BinarySI))
}
