package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/scheduler"
)

// byOwner is the index of claims by the UID of the Pod whose generic ephemeral
// volumes they are.
const byOwner = "owner"

// misfitHold is for how long a node seems too small for a Pod whose claims do
// not fit there together: long enough for the scheduler to choose again.
const misfitHold = time.Minute

// ownerIndexer indexes claims by the Pod that they belong to.
func ownerIndexer(obj any) ([]string, error) {
	claim, ok := obj.(*v1.PersistentVolumeClaim)
	if !ok {
		return nil, nil
	}
	if pod := ownerPod(claim); pod != nil {
		return []string{string(pod.UID)}, nil
	}
	return nil, nil
}

// misfit tells why the generic ephemeral claims of one Pod cannot be on the node
// that the scheduler chose, though each by itself could: it judges them one by
// one. Once one of them is bound, the Pod can be nowhere else; so this is found
// out before any of them is made, and from then on the node seems too small for
// a while, lest it be chosen again.
//
// Only what is certain counts: more in sum than the node has, whoever else waits
// for it.
func (p *provisioner) misfit(a *attempt, claim *v1.PersistentVolumeClaim, r request, view *fleet.View) error {
	pod, class := ownerPod(claim), classOn(view, r)
	if pod == nil || class == "" || len(a.doubts) > 0 {
		return nil
	}
	objs, err := p.claims.GetIndexer().ByIndex(byOwner, string(pod.UID))
	if err != nil || len(objs) < 2 {
		return nil //nolint:nilerr // there is the index
	}
	var sum, largest int64
	var together []string
	for _, obj := range objs {
		sibling, ok := obj.(*v1.PersistentVolumeClaim)
		if !ok {
			return nil
		}
		storage, ours := p.ourClass(volume.GetPersistentVolumeClaimClass(sibling))
		if !ours || !delayed(storage) {
			continue
		}
		selected := sibling.Annotations[volume.AnnSelectedNode]
		if _, made := view.ByName[volumeName(sibling)]; made || sibling.Spec.VolumeName != "" || selected != "" && selected != view.Node {
			return nil // they are bound to somewhere already
		}
		its, err := parseClaim(sibling, storage)
		if err != nil || its.source != nil || classOn(view, its) != class {
			continue
		}
		sum, largest = sum+its.bytes, max(largest, its.bytes)
		together = append(together, sibling.Name)
	}
	on, _ := view.Class(r.deviceClass)
	if len(together) < 2 || sum <= on.GetAvailableBytes() {
		return nil
	}
	for _, changed := range p.ledger.Reserve(scheduler.Reservation{Claim: "pod " + string(pod.UID), Node: view.Node,
		Class: r.deviceClass, Bytes: sum - largest, Deadline: p.now().Add(misfitHold)}) {
		p.roomChanged(changed)
	}
	slices.Sort(together)
	return fmt.Errorf("the claims %s of Pod %s need %s together in device class %q, of which node %s has %s free", strings.Join(together, ", "), pod.Name,
		resource.NewQuantity(sum, resource.BinarySI), class, view.Node, resource.NewQuantity(on.GetAvailableBytes(), resource.BinarySI))
}

// classOn is the name of the device class that a request means on a node.
func classOn(view *fleet.View, r request) string {
	class, ok := view.Class(r.deviceClass)
	if !ok {
		return ""
	}
	return class.GetName()
}
