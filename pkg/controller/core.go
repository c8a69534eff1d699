package controller

import (
	"time"

	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/scheduler"
)

// core is what the parts of the controller share.
type core struct {
	*cluster.Cluster
	ledger    *scheduler.Ledger
	metrics   *metrics
	identity  string
	available *cluster.Availability
	owner     *capacity.Owner
	ids       *cluster.IDs
	// What follows is set by tests only, and zero means the constants: how many claims, volumes that are to
	// be deleted, grown or changed, and snapshots are worked on at once, from when on a create is slow,
	// when it is given up, for how long a claim waits for its Pod to be seen, for how long the Pod of a
	// movable volume may have no node, for how long other nodes must lack space for it, and the time
	// between two writes of a Node's conditions.
	workers                                               int
	slowCreate, createTimeout, podLag, pinGrace, shortFor time.Duration
	conditionPause                                        time.Duration
}
