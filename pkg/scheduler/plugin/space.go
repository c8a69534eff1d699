package plugin

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/objects"
)

const (
	labelIndex = "carve/label"
	// sampled is of how many nodes the capacity is compared first, to see whether most are full.
	sampled = 100
	// stride is from one of them to the next: a prime, so that they are all different, and in no rhythm that nodes may have.
	stride = 7919
)

// binding is VolumeBinding with Carve's binder. Where most nodes have no space for a Pod's new volumes, it limits the
// scheduler to the others: to ask all plugins about each node takes far longer than to compare its capacity.
type binding struct {
	*volumebinding.VolumeBinding
	binder *binder
	space  *space
}

// PreFilter implements fwk.PreFilterPlugin. It leaves out no node that Filter would accept.
func (b *binding) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	result, status := b.VolumeBinding.PreFilter(ctx, state, pod, nodes)
	if !status.IsSuccess() || !result.AllNodes() {
		return result, status
	}
	if held := b.space.held(pod); held != nil {
		if held.Len() == 0 {
			return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, string(volumebinding.ErrReasonNodeConflict))
		}
		return &fwk.PreFilterResult{NodeNames: held}, status
	}
	if b.binder.hasCandidates(pod) {
		return result, status
	}
	found, few := b.space.nodes(pod, nodes)
	switch {
	case !few:
		return result, status
	case found.Len() == 0:
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, string(volumebinding.ErrReasonNotEnoughSpace))
	}
	return &fwk.PreFilterResult{NodeNames: found}, status
}

// space compares the capacity that nodes publish with what claims ask for.
type space struct {
	claims     corelisters.PersistentVolumeClaimLister
	volumes    corelisters.PersistentVolumeLister
	holders    cache.Indexer // the same PersistentVolumes by holderIndex
	classes    storagelisters.StorageClassLister
	drivers    storagelisters.CSIDriverLister
	capacities cache.Indexer // by capacityIndex
	labelled   cache.Indexer // Nodes by labelIndex: the scheduler knows no others
	inFlight   *inFlight
	// above is the number of nodes up to which the time matters less than the reasons that a Pod's Event names.
	above int
}

func newSpace(handle fwk.Handle, inFlight *inFlight) (*space, error) {
	core, storage := handle.SharedInformerFactory().Core().V1(), handle.SharedInformerFactory().Storage().V1()
	labelled := core.Nodes().Informer().GetIndexer()
	if err := addIndex(labelled, labelIndex, nodeLabel); err != nil {
		return nil, err
	}
	holders := core.PersistentVolumes().Informer().GetIndexer()
	if err := addIndex(holders, holderIndex, holder); err != nil {
		return nil, err
	}
	return &space{core.PersistentVolumeClaims().Lister(), core.PersistentVolumes().Lister(), holders, storage.StorageClasses().Lister(), storage.CSIDrivers().Lister(),
		storage.CSIStorageCapacities().Informer().GetIndexer(), labelled, inFlight, sampled}, nil
}

// wanted is a volume that a claim will get.
type wanted struct {
	class string
	bytes int64
}

// nodes returns the names of the nodes that have space for each new volume of a Pod, if these are few: no more than half
// of all. There are no static volumes for the Pod's claims.
func (s *space) nodes(pod *v1.Pod, all []fwk.NodeInfo) (found sets.Set[string], few bool) {
	if len(all) <= s.above {
		return nil, false
	}
	volumes := s.wanted(pod)
	if len(volumes) == 0 {
		return nil, false
	}
	looked, suitable := min(sampled, len(all)), 0
	for i := range looked {
		if s.suffices(all[i*stride%len(all)].Node(), volumes) {
			suitable++
		}
	}
	if 2*suitable > looked {
		return nil, false
	}
	values := s.topologies(volumes[0])
	for _, w := range volumes[1:] {
		values = values.Intersection(s.topologies(w))
	}
	// A Cluster Autoscaler that is built with the plugin has nodes that no informer knows.
	if slices.ContainsFunc(all, func(node fwk.NodeInfo) bool { return node.Node().Labels[names.LabelTemplateNode] != "" }) {
		return nil, false
	}
	found = sets.New[string]()
	for value := range values {
		nodes, err := s.labelled.ByIndex(labelIndex, value)
		if err != nil {
			return nil, false
		}
		for _, object := range nodes {
			if node, ok := object.(*v1.Node); ok {
				found.Insert(node.Name)
			}
		}
	}
	return found, 2*found.Len() <= len(all)
}

// topologies returns the values of Carve's label for which there is space for a volume.
func (s *space) topologies(w wanted) sets.Set[string] {
	values := sets.New[string]()
	for _, object := range s.capacities.List() {
		if s.fits(object, w) {
			values.Insert(topologyOf(object.(*storagev1.CSIStorageCapacity)))
		}
	}
	return values
}

// wanted returns those new volumes of a Pod whose size decides which nodes suit it.
func (s *space) wanted(pod *v1.Pod) (volumes []wanted) {
	for claim, class := range s.unbound(pod) {
		driver, err := s.drivers.Get(class.Provisioner)
		size, sized := claim.Spec.Resources.Requests[v1.ResourceStorage]
		if err != nil || driver.Spec.StorageCapacity == nil || !*driver.Spec.StorageCapacity || !sized {
			continue
		}
		if w := (wanted{class.Name, size.Value()}); !s.isShared(w) { // space of several nodes is left to upstream
			volumes = append(volumes, w)
		}
	}
	return volumes
}

// unbound lists the claims of a Pod that have no volume, with their classes.
func (s *space) unbound(pod *v1.Pod) iter.Seq2[*v1.PersistentVolumeClaim, *storagev1.StorageClass] {
	return func(yield func(*v1.PersistentVolumeClaim, *storagev1.StorageClass) bool) {
		for claim := range s.named(pod) {
			if claim.Spec.VolumeName != "" {
				continue
			}
			if class, err := s.classes.Get(volume.GetPersistentVolumeClaimClass(claim)); err == nil && !yield(claim, class) {
				return
			}
		}
	}
}

// named lists the claims that a Pod names.
func (s *space) named(pod *v1.Pod) iter.Seq[*v1.PersistentVolumeClaim] {
	return func(yield func(*v1.PersistentVolumeClaim) bool) {
		for _, key := range objects.ClaimsNamed(pod) {
			namespace, name, _ := strings.Cut(key, "/")
			if claim, err := s.claims.PersistentVolumeClaims(namespace).Get(name); err == nil && !yield(claim) {
				return
			}
		}
	}
}

// held returns the node that holds the movable volumes of a Pod: upstream cannot read it from their PersistentVolumes. It returns
// an empty set where several nodes hold one each, and nil for a Pod without such volumes.
func (s *space) held(pod *v1.Pod) (nodes sets.Set[string]) {
	for claim := range s.named(pod) {
		pv, err := s.volumes.Get(claim.Spec.VolumeName)
		if err != nil {
			continue
		}
		if node, movable := movableOn(pv); movable {
			if nodes == nil {
				nodes = sets.New(node)
			}
			nodes = nodes.Intersection(sets.New(node))
		}
	}
	return nodes
}

func (s *space) suffices(node *v1.Node, volumes []wanted) bool {
	name, ok := node.Labels[names.TopologyNode]
	return ok && !slices.ContainsFunc(volumes, func(w wanted) bool { return !s.has(name, w) })
}

// isShared reports whether objects that are not one node's have space for a volume. Those of the Cluster Autoscaler's
// template nodes, which have as much as an empty node, do not count: no node that is there has their label.
func (s *space) isShared(w wanted) bool {
	objects, err := s.capacities.ByIndex(capacityIndex, anyNode)
	return err != nil || slices.ContainsFunc(objects, func(object any) bool { return !isTemplate(object) && s.fits(object, w) })
}

func isTemplate(object any) bool {
	capacity, ok := object.(*storagev1.CSIStorageCapacity)
	return ok && capacity.NodeTopology != nil && capacity.NodeTopology.MatchLabels[names.LabelTemplateNode] != ""
}

func (s *space) has(node string, w wanted) bool {
	objects, err := s.capacities.ByIndex(capacityIndex, node)
	return err != nil || slices.ContainsFunc(objects, func(object any) bool { return s.fits(object, w) })
}

// fits compares as upstream does. That what is in flight is counted last is faster, because that is rare.
func (s *space) fits(object any, w wanted) bool {
	capacity, ok := object.(*storagev1.CSIStorageCapacity)
	return ok && capacity.StorageClassName == w.class && limit(capacity) >= w.bytes && limit(s.inFlight.left(capacity)) >= w.bytes
}

// limit is how many bytes a volume can have, or less than any has if that is not known.
func limit(capacity *storagev1.CSIStorageCapacity) int64 {
	if most := cmp.Or(capacity.MaximumVolumeSize, capacity.Capacity); most != nil {
		return most.Value()
	}
	return -1
}

// nodeLabel is the index's function.
func nodeLabel(object any) ([]string, error) {
	node, ok := object.(*v1.Node)
	if !ok {
		return nil, fmt.Errorf("a %T is no Node", object)
	}
	if value, ok := node.Labels[names.TopologyNode]; ok {
		return []string{value}, nil
	}
	return nil, nil
}
