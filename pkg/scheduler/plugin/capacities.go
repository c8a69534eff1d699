package plugin

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	storageinformers "k8s.io/client-go/informers/storage/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/carve-csi/carve/api/names"
)

const (
	capacityIndex = "carve/node"
	// anyNode is the index's value for objects whose topology is not one of Carve's nodes. It is
	// not a valid label value.
	anyNode = "*"
)

// nodeCapacities lists the CSIStorageCapacity objects that one node may access: those with this
// node in Carve's topology label, and those without such a label. Upstream's binder, which lists
// all, makes the final check. Claims in flight are deducted.
type nodeCapacities struct {
	storageinformers.CSIStorageCapacityInformer
	storagelisters.CSIStorageCapacityLister
	objects  cache.Indexer
	inFlight *inFlight
	node     *v1.Node
}

func newNodeCapacities(informer storageinformers.CSIStorageCapacityInformer, inFlight *inFlight) (*nodeCapacities, error) {
	objects := informer.Informer().GetIndexer()
	if err := addIndex(objects, capacityIndex, capacityNode); err != nil {
		return nil, err
	}
	return &nodeCapacities{CSIStorageCapacityInformer: informer, CSIStorageCapacityLister: informer.Lister(), objects: objects, inFlight: inFlight}, nil
}

func (c *nodeCapacities) Lister() storagelisters.CSIStorageCapacityLister { return c }

func (c *nodeCapacities) List(selector labels.Selector) ([]*storagev1.CSIStorageCapacity, error) {
	found, err := c.objects.ByIndex(capacityIndex, anyNode)
	if err != nil {
		return nil, err
	}
	if name, ok := c.node.Labels[names.TopologyNode]; ok {
		own, err := c.objects.ByIndex(capacityIndex, name)
		if err != nil {
			return nil, err
		}
		found = append(found, own...)
	}
	listed := make([]*storagev1.CSIStorageCapacity, 0, len(found))
	for _, object := range found {
		if capacity, ok := object.(*storagev1.CSIStorageCapacity); ok && selector.Matches(labels.Set(capacity.Labels)) {
			listed = append(listed, c.inFlight.left(capacity))
		}
	}
	return listed, nil
}

// capacityNode indexes an object with further conditions by its node, too: all must match anyway.
func capacityNode(object any) ([]string, error) {
	capacity, ok := object.(*storagev1.CSIStorageCapacity)
	if !ok {
		return nil, fmt.Errorf("a %T is no CSIStorageCapacity", object)
	}
	return []string{topologyOf(capacity)}, nil
}

// topologyOf returns the value of Carve's label in an object's topology, or anyNode.
func topologyOf(capacity *storagev1.CSIStorageCapacity) string {
	if capacity.NodeTopology != nil {
		if name, ok := capacity.NodeTopology.MatchLabels[names.TopologyNode]; ok {
			return name
		}
	}
	return anyNode
}

// addIndex skips an index that the plugin of another profile, with the same informers, has added.
func addIndex(indexer cache.Indexer, name string, function cache.IndexFunc) error {
	if indexer.GetIndexers()[name] != nil {
		return nil
	}
	return indexer.AddIndexers(cache.Indexers{name: function})
}
