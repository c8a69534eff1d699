package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/scheduler"
)

// fullMemory is how long a node that had no room is passed over.
const fullMemory = 10 * time.Second

// syncImmediate chooses a node for a claim that binds without waiting for a
// Pod. As with the upstream provisioner, the PV controller speaks first: it
// looks for a volume that exists, and asks for a new one by annotation.
func (p *provisioner) syncImmediate(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, r request) (time.Duration, error) {
	if claim.Annotations[volume.AnnStorageProvisioner] != names.Driver && claim.Annotations[volume.AnnBetaStorageProvisioner] != names.Driver {
		return 0, nil
	}
	node, err := p.place(a, class, r)
	if err != nil {
		if p.complain(a, claim, err.Error()) {
			p.metrics.claims.WithLabelValues(resultFailed).Inc()
		}
		return 0, err
	}
	if err := p.settle(ctx, a, claim, node); err != nil {
		return 0, err
	}
	return p.provision(ctx, a, claim, class, r, node)
}

// place chooses a node and reserves there, one claim at a time: the next one
// of a burst is to see what this one takes.
func (p *provisioner) place(a *attempt, class *storagev1.StorageClass, r request) (string, error) {
	p.placing.Lock()
	defer p.placing.Unlock()
	node, err := p.choose(a, class, r)
	if err != nil {
		return "", err
	}
	p.mu.Lock()
	if a.node != node {
		a.node, a.selectedAt = node, p.now()
	}
	p.mu.Unlock()
	p.reserve(a, node, r)
	return node, nil
}

// choose picks a node: one that may hold the volume already, the one chosen
// before, or else the best by policy of those that the class allows.
func (p *provisioner) choose(a *attempt, class *storagev1.StorageClass, r request) (string, error) {
	p.mu.Lock()
	preferred := []string{a.node}
	p.mu.Unlock()
	preferred = append(append(p.fleet.Holders(a.name), sortedKeys(a.doubts)...), preferred...)
	for _, node := range preferred {
		if view, ok := p.fleet.View(node); ok && view.Connected {
			return node, nil
		}
	}
	now, passed := p.now(), passedOver{}
	candidates := slices.DeleteFunc(p.ledger.Candidates(r.deviceClass), func(c scheduler.Candidate) bool {
		view, ok := p.fleet.View(c.Node)
		node, err := p.nodeLister.Get(c.Node)
		switch {
		case !ok || !view.Connected || err != nil:
			passed.away++
		case !allowedBy(class.AllowedTopologies, node):
			passed.forbidden++
		case node.Spec.Unschedulable || outOfService(node):
			passed.cordoned++
		case c.Held:
			passed.held++
		case now.Sub(a.full[c.Node]) < fullMemory:
			passed.full++
		default:
			passed.largest = max(passed.largest, min(c.Room.Available, c.Room.MaximumVolume))
			return false
		}
		return true
	})
	ranked := r.placement.Rank(r.room(), candidates)
	if len(ranked) == 0 {
		p.mu.Lock()
		waited := now.Sub(a.began)
		p.mu.Unlock()
		if waited >= complainAfter {
			if err := p.hopeless(class, r); err != nil {
				return "", err
			}
		}
		passed.full += len(candidates)
		return "", passed.explain(class, r)
	}
	return ranked[0].Node, nil
}

// passedOver counts why nodes that have the device class were not chosen.
type passedOver struct {
	away, forbidden, cordoned, held, full int
	largest                               int64 // that could be made on any that is just too full
}

func (o passedOver) explain(class *storagev1.StorageClass, r request) error {
	return fmt.Errorf("no connected node that StorageClass %s allows has %s free in device class %q: of those that have the class, "+
		"%d are not connected, %d are excluded by allowedTopologies, %d are cordoned or out of service, %d are held back because creating volumes failed there, %d are too full (the largest volume would be %s); trying on",
		class.Name, resource.NewQuantity(r.bytes, resource.BinarySI), r.deviceClass,
		o.away, o.forbidden, o.cordoned, o.held, o.full, resource.NewQuantity(o.largest, resource.BinarySI))
}

// allowedBy tells whether a StorageClass' allowedTopologies, of which one term
// must match entirely, let a volume be on a node. No terms allow all nodes.
func allowedBy(terms []v1.TopologySelectorTerm, node *v1.Node) bool {
	if len(terms) == 0 {
		return true
	}
	return slices.ContainsFunc(terms, func(term v1.TopologySelectorTerm) bool {
		for _, e := range term.MatchLabelExpressions {
			value, ok := node.Labels[e.Key]
			if e.Key == names.TopologyNode {
				value, ok = node.Name, true // also before the kubelet has set the label
			}
			if !ok || !slices.Contains(e.Values, value) {
				return false
			}
		}
		return true
	})
}

// complainIfHopeless tells the user of a claim that has no node yet why it will
// not get one, if that is certain: the scheduler only says that no node has
// enough free storage.
func (p *provisioner) complainIfHopeless(a *attempt, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, r request) (time.Duration, error) {
	p.mu.Lock()
	left := a.began.Add(complainAfter).Sub(p.now())
	p.mu.Unlock()
	if left > 0 {
		return left, nil
	}
	if why := p.hopeless(class, r); why != nil {
		if p.complain(a, claim, why.Error()) {
			p.metrics.claims.WithLabelValues(resultRejected).Inc()
		}
	}
	return complainEvery, nil
}

// hopeless returns why no node that ever connected can take the claim, even if
// it were empty, or nil. A controller that just started knows no node yet.
func (p *provisioner) hopeless(class *storagev1.StorageClass, r request) error {
	var largest int64
	var found, reported bool
	known := map[string]struct{}{}
	for _, view := range p.fleet.Views() {
		reported = reported || view.Reported()
		for name := range view.Classes {
			known[name] = struct{}{}
		}
		if c, ok := view.Class(r.deviceClass); ok {
			found, largest = true, max(largest, c.GetTotalBytes())
		}
	}
	switch {
	case !reported:
		return errors.New("no node is connected to the carve controller: are the Pods of the DaemonSet carve-node running?")
	case !found && r.deviceClass == "":
		return &InvalidError{Field: classField(class, names.ParamDeviceClass), Given: "no class, while no node has a default one,",
			Allowed: fmt.Sprintf("%q", sortedKeys(known))}
	case !found:
		return &InvalidError{Field: classField(class, names.ParamDeviceClass), Given: fmt.Sprintf("%q, which no node has,", r.deviceClass),
			Allowed: fmt.Sprintf("%q", sortedKeys(known))}
	case r.room() > largest:
		return &InvalidError{Field: "spec.resources.requests.storage", Given: resource.NewQuantity(r.bytes, resource.BinarySI).String(),
			Allowed: fmt.Sprintf("at most %s, the size of the largest node's device class", resource.NewQuantity(largest, resource.BinarySI))}
	}
	return nil
}

// noSuchClass says that a node does not have a StorageClass's device class.
func noSuchClass(class *storagev1.StorageClass, deviceClass string, view *fleet.View) error {
	given := fmt.Sprintf("%q, which node %s does not have,", deviceClass, view.Node)
	if deviceClass == "" {
		given = fmt.Sprintf("no class, while node %s has no default one,", view.Node)
	}
	return &InvalidError{Field: classField(class, names.ParamDeviceClass), Given: given, Allowed: fmt.Sprintf("%q there", view.ClassNames())}
}
