package cluster

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/utils/lru"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/quantity"
)

// idsKept is how many of the latest ids are kept: each is soon in a report or a PersistentVolume.
const idsKept = 16384

// IDs knows which volume has which id. lvmd draws ids at random: one is one volume's, on one node. A
// node that answers a create with another volume's id would be asked for that one's snapshots, clones
// and growth. Its methods are safe for concurrent use.
type IDs struct {
	cluster *Cluster

	mu     sync.Mutex
	latest *lru.Cache // the identity of each id that was accepted
}

// identity is what an id stands for.
type identity struct{ node, name string }

// NewIDs makes one that knows what the cluster knows.
func NewIDs(c *Cluster) *IDs { return &IDs{cluster: c, latest: lru.New(idsKept)} }

// IDTakenError says that a node answered a create with an id that another volume has.
type IDTakenError struct {
	Node, ID string
	// Holder says what has the id, as a part of a sentence.
	Holder string
}

func (e *IDTakenError) Error() string {
	return fmt.Sprintf("node %s answered with volume id %q, which %s: find out what runs as carve-lvmd on node %s", e.Node, e.ID, e.Holder, e.Node)
}

// WrongVolumeError says that a node answered a create with a volume of another name or size than was
// asked for.
type WrongVolumeError struct {
	Node       string
	Got, Asked string // the volumes, as parts of a sentence
}

func (e *WrongVolumeError) Error() string {
	return fmt.Sprintf("node %s answered with %s, asked for %s; do its agent and the controller have the same version?", e.Node, e.Got, e.Asked)
}

// Accept notes that a node answered a create with a volume. It returns a WrongVolumeError when that is
// not what was asked for, and an IDTakenError when a PersistentVolume has its id for another volume, a
// node reports the id of another one, or another create was answered with it. It may be repeated.
func (i *IDs) Accept(node string, ask *lvmdv1.CreateVolumeRequest, vol *lvmdv1.Volume) error {
	name, id, bytes := ask.GetName(), vol.GetId(), vol.GetSizeBytes()
	if vol.GetName() != name || bytes < ask.GetRequiredBytes() {
		describe := func(name string, bytes int64) string {
			return fmt.Sprintf("volume %q of %s", name, quantity.Bytes(bytes))
		}
		return &WrongVolumeError{Node: node, Got: describe(vol.GetName(), bytes), Asked: describe(name, ask.GetRequiredBytes())}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if holder := i.holder(node, name, id); holder != "" {
		return &IDTakenError{Node: node, ID: id, Holder: holder}
	}
	i.latest.Add(id, identity{node, name})
	return nil
}

// holder says what has the id besides a volume, or is empty. It is called with the lock held.
func (i *IDs) holder(node, name, id string) string {
	if id == "" {
		return "is none"
	}
	for _, pv := range i.cluster.withHandle(id) {
		if on, _ := objects.NodeOf(pv); on != node || pv.Name != name {
			return fmt.Sprintf("PersistentVolume %s has on node %q", pv.Name, on)
		}
	}
	// Orphans, inline volumes and those of other provisioners have no PersistentVolume.
	reports := i.cluster.Fleet.ReportsOf(id)
	for _, on := range slices.Sorted(maps.Keys(reports)) {
		if reported := reports[on].GetName(); on != node || reported != name {
			return fmt.Sprintf("node %s reports of volume %q", on, reported)
		}
	}
	if before, ok := i.latest.Get(id); ok && before != (identity{node, name}) {
		if at, ok := before.(identity); ok {
			return fmt.Sprintf("node %s answered with for volume %q", at.node, at.name)
		}
	}
	return ""
}
