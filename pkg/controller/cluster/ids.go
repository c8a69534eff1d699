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

// idsKept is the number of latest ids to keep: each is soon in a report or a PersistentVolume.
const idsKept = 16384

// IDs tracks which volume has which id. lvmd draws ids at random, so an id belongs to one volume on
// one node. If the controller accepted another volume's id from a node, it would send that volume's
// snapshots, clones and expansions to this node. The methods may be called concurrently.
type IDs struct {
	cluster *Cluster

	mu     sync.Mutex
	latest *lru.Cache // the identity of each accepted id
}

type identity struct{ node, name string }

// NewIDs returns IDs that start with the ids known to the cluster.
func NewIDs(c *Cluster) *IDs { return &IDs{cluster: c, latest: lru.New(idsKept)} }

// IDTakenError means that a node answered a create with an id that another volume has.
type IDTakenError struct {
	Node, ID string
	// Holder describes the holder of the id, as a part of a sentence.
	Holder string
}

func (e *IDTakenError) Error() string {
	return fmt.Sprintf("node %s answered with volume id %q, which %s: find out what runs as carve-lvmd on node %s", e.Node, e.ID, e.Holder, e.Node)
}

// WrongVolumeError means that a node answered a create with a volume of another name or a smaller
// size than requested.
type WrongVolumeError struct {
	Node       string
	Got, Asked string // the volumes, as parts of a sentence
}

func (e *WrongVolumeError) Error() string {
	return fmt.Sprintf("node %s answered with %s, asked for %s; do its agent and the controller have the same version?", e.Node, e.Got, e.Asked)
}

// Accept records a node's answer to a create. It returns a WrongVolumeError if the volume does not
// match the request, and an IDTakenError if a PersistentVolume, a report or an earlier answer has
// its id for another volume. Repeated calls are harmless.
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

// holder describes another holder of the id, or returns "". The caller holds i.mu.
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
