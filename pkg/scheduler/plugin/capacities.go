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
	// anyNode is the index's value for objects whose topology is not one of Carve's nodes. No label has it.
	anyNode = "*"
)

// nodeCapacities lists the CSIStorageCapacity objects that one node may have access to, as upstream's binder, which asks
// for all, decides then: those whose topology has this node in Carve's label, and those that do not name a node so. They are without
// what is in flight.
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

// Lister implements CSIStorageCapacityInformer.
func (c *nodeCapacities) Lister() storagelisters.CSIStorageCapacityLister { return c }

// List implements CSIStorageCapacityLister.
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

// capacityNode is the index's function. An object with further conditions is with the node, too: it needs all of them.
func capacityNode(object any) ([]string, error) {
	capacity, ok := object.(*storagev1.CSIStorageCapacity)
	if !ok {
		return nil, fmt.Errorf("a %T is no CSIStorageCapacity", object)
	}
	return []string{topologyOf(capacity)}, nil
}

// topologyOf is the value of Carve's label that an object's topology has, or anyNode.
func topologyOf(capacity *storagev1.CSIStorageCapacity) string {
	if capacity.NodeTopology != nil {
		if name, ok := capacity.NodeTopology.MatchLabels[names.TopologyNode]; ok {
			return name
		}
	}
	return anyNode
}

// addIndex adds an index, unless the plugin of another profile, which has the same informers, did.
func addIndex(indexer cache.Indexer, name string, function cache.IndexFunc) error {
	if indexer.GetIndexers()[name] != nil {
		return nil
	}
	return indexer.AddIndexers(cache.Indexers{name: function})
}
