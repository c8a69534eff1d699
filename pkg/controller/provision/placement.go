package provision

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/quantity"
	"github.com/carve-csi/carve/pkg/scheduler"
)

// fullMemory is the time for which place avoids a node without enough free space.
const fullMemory = 10 * time.Second

// place selects and reserves under a lock: the next claim of a burst must see the reservation.
func (p *Provisioner) place(a *attempt, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, r spec.Request) (string, error) {
	_, selected := p.attempts.get(a.uid)
	p.placing.Lock()
	node := p.placer.choose(a, selected, class, r)
	if node != "" {
		p.attempts.selectNode(a.uid, node, p.Now())
		p.reservations.reserve(a, node, r)
	}
	p.placing.Unlock()
	if node != "" {
		return node, nil
	}
	err := p.placer.explain(a, selected, class, r)
	if p.warn(a, claim, err.Error()) {
		p.Metrics.claims.WithLabelValues(resultFailed).Inc()
	}
	return "", err
}

type placer struct {
	*cluster.Cluster
	ledger *scheduler.Ledger
}

// choose prefers a node that may hold the volume, then the one chosen before, then the best by
// policy. In a nearly full cluster it looks only at nodes with enough free space.
func (l placer) choose(a *attempt, selected selection, class *storagev1.StorageClass, r spec.Request) string {
	preferred := []string{selected.node}
	preferred = append(append(l.Fleet.Holders(a.name), slices.Sorted(maps.Keys(a.inFlight.nodes))...), preferred...)
	for _, node := range preferred {
		if view, ok := l.Fleet.View(node); ok && view.Connected {
			return node
		}
	}
	var passed passedOver
	for _, c := range r.Placement.Rank(r.Footprint(), l.ledger.Candidates(r.DeviceClass, r.Footprint())) {
		if !l.passOver(&passed, a, class, c) {
			return c.Node
		}
	}
	return ""
}

// passOver ignores free space; it counts the reasons.
func (l placer) passOver(passed *passedOver, a *attempt, class *storagev1.StorageClass, c scheduler.Candidate) bool {
	view, ok := l.Fleet.View(c.Node)
	node, err := l.NodeLister.Get(c.Node)
	switch {
	case !ok || !view.Connected || err != nil:
		passed.away++
	case !spec.AllowedBy(class.AllowedTopologies, node):
		passed.forbidden++
	case node.Spec.Unschedulable || cluster.OutOfService(node):
		passed.cordoned++
	case c.Held:
		passed.held++
	case l.Now().Sub(a.full[c.Node]) < fullMemory:
		passed.full++
	default:
		return false
	}
	return true
}

// explain looks at all nodes, unlike choose.
func (l placer) explain(a *attempt, selected selection, class *storagev1.StorageClass, r spec.Request) error {
	if l.Now().Sub(selected.began) >= WarnAfter {
		if err := l.unsatisfiable(class, r); err != nil {
			return err
		}
	}
	var passed passedOver
	for _, c := range l.ledger.Candidates(r.DeviceClass, 0) {
		if !l.passOver(&passed, a, class, c) {
			passed.full++
			passed.largest = max(passed.largest, min(c.FreeSpace.Available, c.FreeSpace.MaximumVolume))
		}
	}
	return passed.explain(class, r)
}

// noneLeft reports whether only last and tried nodes can take claims of the StorageClass.
func (l placer) noneLeft(tried map[string]bool, last string, class *storagev1.StorageClass, r spec.Request) bool {
	for _, view := range l.Fleet.Views() {
		if _, has := view.Class(r.DeviceClass); !has || !view.Connected || tried[view.Node] || view.Node == last {
			continue
		}
		node, err := l.NodeLister.Get(view.Node)
		if err == nil && spec.AllowedBy(class.AllowedTopologies, node) && !node.Spec.Unschedulable && !cluster.OutOfService(node) {
			return false
		}
	}
	return true
}

type passedOver struct {
	away, forbidden, cordoned, held, full int
	largest                               int64 // volume size that a node passed over as full still has
}

func (o passedOver) explain(class *storagev1.StorageClass, r spec.Request) error {
	return fmt.Errorf("no connected node that StorageClass %s allows has %s free in device class %q: of those that have the class, "+
		"%d are not connected, %d are excluded by allowedTopologies, %d are cordoned or out of service, %d are held back because creating volumes failed there, %d are too full (the largest volume would be %s); trying on",
		class.Name, quantity.Bytes(r.Bytes), r.DeviceClass,
		o.away, o.forbidden, o.cordoned, o.held, o.full, quantity.Bytes(o.largest))
}

// unsatisfiable returns the reason why no known node could take the claim even if empty, or
// nil. After a start no node is known.
func (l placer) unsatisfiable(class *storagev1.StorageClass, r spec.Request) error {
	var largest int64
	var found, reported bool
	known := map[string]struct{}{}
	for _, view := range l.Fleet.Views() {
		reported = reported || view.Reported()
		for name := range view.Classes {
			known[name] = struct{}{}
		}
		if c, ok := view.Class(r.DeviceClass); ok {
			found, largest = true, max(largest, c.GetTotalBytes())
		}
	}
	switch {
	case !reported:
		return errors.New("no node is connected to the carve controller: are the Pods of the DaemonSet carve-node running?")
	case !found && r.DeviceClass == "":
		return &spec.InvalidError{Field: spec.ClassField(class, names.ParamDeviceClass), Given: "no class, while no node has a default one,",
			Allowed: fmt.Sprintf("%q", slices.Sorted(maps.Keys(known)))}
	case !found:
		return &spec.InvalidError{Field: spec.ClassField(class, names.ParamDeviceClass), Given: fmt.Sprintf("%q, which no node has,", r.DeviceClass),
			Allowed: fmt.Sprintf("%q", slices.Sorted(maps.Keys(known)))}
	case r.Footprint() > largest:
		return &spec.InvalidError{Field: "spec.resources.requests.storage", Given: quantity.Bytes(r.Bytes),
			Allowed: fmt.Sprintf("at most %s, the size of the largest node's device class", quantity.Bytes(largest))}
	}
	return nil
}

func noSuchClass(class *storagev1.StorageClass, deviceClass string, view *fleet.View) error {
	given := fmt.Sprintf("%q, which node %s does not have,", deviceClass, view.Node)
	if deviceClass == "" {
		given = fmt.Sprintf("no class, while node %s has no default one,", view.Node)
	}
	return &spec.InvalidError{Field: spec.ClassField(class, names.ParamDeviceClass), Given: given, Allowed: fmt.Sprintf("%q there", view.ClassNames())}
}
