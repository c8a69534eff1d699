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
	// sampled is the number of nodes to check first, to see whether most are full.
	sampled = 100
	// stride is the distance between sampled nodes. It is a large prime, so that they are distinct
	// unless it divides the number of nodes, and follow no pattern among the nodes.
	stride = 7919
)

// binding is VolumeBinding with Carve's binder. If most nodes lack the space for a Pod's new
// volumes, it limits the scheduler to the others: comparing a node's capacity is far faster than
// asking all plugins.
type binding struct {
	*volumebinding.VolumeBinding
	binder *binder
	space  *space
}

// PreFilter excludes only nodes that Filter would reject.
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

type space struct {
	claims     corelisters.PersistentVolumeClaimLister
	volumes    corelisters.PersistentVolumeLister
	holders    cache.Indexer // the same PersistentVolumes by holderIndex
	classes    storagelisters.StorageClassLister
	drivers    storagelisters.CSIDriverLister
	capacities cache.Indexer // by capacityIndex
	labelled   cache.Indexer // Nodes by labelIndex: the scheduler knows no others
	inFlight   *inFlight
	// above is the number of nodes up to which speed matters less than the reasons in a Pod's
	// Event.
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

type wanted struct {
	class string
	bytes int64
}

// nodes returns the names of the nodes that have space for each new volume of a Pod, if they are
// few: at most half of all. The Pod's claims must not have static volumes.
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
	// A Cluster Autoscaler built with the plugin has nodes that no informer knows.
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

func (s *space) topologies(w wanted) sets.Set[string] {
	values := sets.New[string]()
	for _, object := range s.capacities.List() {
		if s.fits(object, w) {
			values.Insert(topologyOf(object.(*storagev1.CSIStorageCapacity)))
		}
	}
	return values
}

// wanted returns the new volumes of a Pod whose size determines the suitable nodes.
func (s *space) wanted(pod *v1.Pod) (volumes []wanted) {
	for claim, class := range s.unbound(pod) {
		driver, err := s.drivers.Get(class.Provisioner)
		size, sized := claim.Spec.Resources.Requests[v1.ResourceStorage]
		if err != nil || driver.Spec.StorageCapacity == nil || !*driver.Spec.StorageCapacity || !sized {
			continue
		}
		if w := (wanted{class.Name, size.Value()}); !s.isShared(w) { // leave shared space to upstream
			volumes = append(volumes, w)
		}
	}
	return volumes
}

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

// held returns the node of a Pod's movable volumes, which upstream cannot read from their
// PersistentVolumes. It returns an empty set if they are on several nodes, and nil if the Pod has
// none.
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

// isShared reports whether capacity objects of several nodes have space for a volume. It ignores
// those of the Cluster Autoscaler's template nodes, which have as much as an empty node: no
// existing node has their label.
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

// fits compares like upstream. It checks claims in flight last, because they are rare.
func (s *space) fits(object any, w wanted) bool {
	capacity, ok := object.(*storagev1.CSIStorageCapacity)
	return ok && capacity.StorageClassName == w.class && limit(capacity) >= w.bytes && limit(s.inFlight.left(capacity)) >= w.bytes
}

// limit returns the largest volume in bytes, or -1 if unknown.
func limit(capacity *storagev1.CSIStorageCapacity) int64 {
	if most := cmp.Or(capacity.MaximumVolumeSize, capacity.Capacity); most != nil {
		return most.Value()
	}
	return -1
}

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
