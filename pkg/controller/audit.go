package controller

import (
	"context"
	"maps"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/fleet"
)

const (
	// auditPass is how often nodes and API are compared.
	auditPass = time.Minute
	// DefaultOrphanGrace is for Options.OrphanGrace: a PersistentVolume is written
	// after its volume is made.
	DefaultOrphanGrace = 10 * time.Minute
	// LeastOrphanGrace is the shortest that Options.OrphanGrace may be.
	LeastOrphanGrace = time.Minute
	// missingGrace is how old a PersistentVolume must be before its volume's
	// absence from the node's report means anything.
	missingGrace = time.Minute
)

// byHandle is the index of our PersistentVolumes by volume id.
const byHandle = "handle"

// auditor compares what the nodes hold with what the API knows: volumes that
// nobody knows (orphans), and PersistentVolumes whose volume is gone.
//
// Orphans are counted and told, and removed only if that was asked for: under the
// reclaim policy Retain, an administrator who deletes a PersistentVolume means to
// keep the data, and such a volume looks the same. See orphan.go.
// A volume that is gone is never made again by itself: its user is told. See
// absence.go.
type auditor struct {
	*core
	remove bool
	every  time.Duration
	grace  time.Duration
	// missing is how old a PersistentVolume must be to be missed.
	missing time.Duration
	// busy tells whether a claim is being worked on.
	busy func(claimUID string) bool
	told map[string]absence // by PersistentVolume: what was announced
	// orphans is what became of orphans, by node and volume id, as it was told.
	orphans map[string]map[string]string
	// ailing is what is wrong with volumes that are there.
	ailing ailments
	// emptied is when inline volumes were emptied of which their Pods were told,
	// and began since when that is remembered.
	emptied map[held]time.Time
	began   time.Time
}

func newAuditor(c *core, remove bool, grace time.Duration, busy func(string) bool) *auditor {
	return &auditor{core: c, remove: remove, every: auditPass, grace: grace, missing: missingGrace, busy: busy, told: map[string]absence{},
		emptied: map[held]time.Time{}, began: c.now()}
}

// run works until ctx is done. The caches must have synced.
func (a *auditor) run(ctx context.Context) error {
	ticker := time.NewTicker(a.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		a.pass(ctx)
	}
}

// Standing of a volume on a node, and the label "standing" of
// carve_controller_audited_volumes.
const (
	standingKnown   = "known"   // a PersistentVolume or a claim speaks for it
	standingYoung   = "young"   // nobody does, but it may just have been made
	standingForeign = "foreign" // another installation's, or nobody's: not ours to judge
	standingOrphan  = "orphan"  // ours, old, and nobody knows it
	standingInline  = "inline"  // a Pod's own: its node's plugin sees to it
)

// pass compares everything once.
func (a *auditor) pass(ctx context.Context) { a.passOver(ctx, a.fleet.Views()) }

// passOver is pass with these views of the nodes.
func (a *auditor) passOver(ctx context.Context, views []*fleet.View) {
	count := map[string]int{standingKnown: 0, standingYoung: 0, standingForeign: 0, standingOrphan: 0, standingInline: 0}
	attempts, orphans := orphansPerPass, map[string]map[string]string{}
	now := newPresent()
	// Nodes and volumes come in no order: orphans that cannot be removed do not use all
	// attempts up for ever.
	for _, view := range views {
		if !view.Connected || !view.Reported() {
			orphans[view.Node] = a.orphans[view.Node]
			now.away[view.Node] = true
			continue // what it holds is not known now
		}
		now.add(view)
		var found []*lvmdv1.Volume
		for _, vol := range view.Volumes {
			a.announceEmptied(ctx, now, view.Node, vol)
			standing := a.judge(vol)
			count[standing]++
			if standing == standingOrphan {
				found = append(found, vol)
			}
		}
		orphans[view.Node] = a.dealWithOrphans(ctx, view.Node, found, &attempts)
	}
	a.orphans = orphans
	maps.DeleteFunc(a.emptied, func(vol held, _ time.Time) bool { return !now.mayHold(vol) })
	a.announceAilments(ctx, now)
	for standing, n := range count {
		a.metrics.audited.WithLabelValues(standing).Set(float64(n))
	}
	for cause, n := range a.compare(ctx, now) {
		a.metrics.missing.WithLabelValues(cause).Set(float64(n))
	}
}

// judge tells what a volume on a node is to us, by what the caches know.
func (a *auditor) judge(vol *lvmdv1.Volume) string {
	owner := vol.GetOwner()
	if owner.GetPodUid() != "" {
		return standingInline
	}
	uid, named := strings.CutPrefix(vol.GetName(), "pvc-")
	if owner.GetClusterId() == "" || owner.GetClusterId() != a.clusterID || !named || uid != owner.GetClaimUid() {
		return standingForeign
	}
	if pvs, err := a.volumes.GetIndexer().ByIndex(byHandle, vol.GetId()); err != nil || len(pvs) > 0 {
		return standingKnown
	}
	claim := a.claim(uid)
	if claim != nil && claim.Spec.VolumeName == "" || a.busy(uid) {
		return standingKnown // being provisioned
	}
	if vol.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY || a.now().Sub(vol.GetCreatedAt().AsTime()) < a.grace {
		return standingYoung
	}
	return standingOrphan
}

// handleIndexer indexes our PersistentVolumes by volume id.
func handleIndexer() cache.Indexers {
	return cache.Indexers{byHandle: func(obj any) ([]string, error) {
		pv, ok := obj.(*v1.PersistentVolume)
		if !ok || !isOurs(pv) {
			return nil, nil
		}
		return []string{pv.Spec.CSI.VolumeHandle}, nil
	}}
}

// volumeOn returns the PersistentVolume of a volume that a node reports, if it names
// that node. A node speaks for its own volumes only, whatever ids it reports.
func (c *core) volumeOn(node, id string) *v1.PersistentVolume {
	objs, err := c.volumes.GetIndexer().ByIndex(byHandle, id)
	if err != nil {
		return nil
	}
	for _, obj := range objs {
		if pv, ok := obj.(*v1.PersistentVolume); ok {
			if named, one := nodeOf(pv); one && named == node {
				return pv
			}
		}
	}
	return nil
}
