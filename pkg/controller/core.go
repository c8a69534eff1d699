package controller

import (
	"time"

	"github.com/carve-csi/carve/pkg/controller/capacity"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/scheduler"
)

type core struct {
	*cluster.Cluster
	ledger    *scheduler.Ledger
	metrics   *metrics
	identity  string
	available *cluster.Availability
	owner     *capacity.Owner
	ids       *cluster.IDs
	// Only tests set the fields below; zero means the constants.
	workers                                               int
	slowCreate, createTimeout, podLag, pinGrace, shortFor time.Duration
	conditionPause                                        time.Duration
}
