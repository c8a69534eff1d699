package controller

import (
	"context"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	// orphansPerPass bounds what one pass removes.
	orphansPerPass = 20
)

// byHandle is the index of our PersistentVolumes by volume id.
const byHandle = "handle"

// auditor compares what the nodes hold with what the API knows: volumes that
// nobody knows (orphans), and PersistentVolumes whose volume is gone.
//
// Orphans are counted and logged, and removed only if that was asked for:
// under the reclaim policy Retain, an administrator who deletes a
// PersistentVolume means to keep the data, and such a volume looks the same.
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
	// ailing is what is wrong with volumes that are there.
	ailing ailments
}

func newAuditor(c *core, remove bool, grace time.Duration, busy func(string) bool) *auditor {
	return &auditor{core: c, remove: remove, every: auditPass, grace: grace, missing: missingGrace, busy: busy, told: map[string]absence{}}
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
func (a *auditor) pass(ctx context.Context) {
	count := map[string]int{standingKnown: 0, standingYoung: 0, standingForeign: 0, standingOrphan: 0, standingInline: 0}
	removed := 0
	now := &present{nodes: map[string]*fleet.View{}, holders: map[string]string{}, pods: podLists{}}
	for _, view := range a.fleet.Views() {
		if !view.Connected || !view.Reported() {
			continue // what it holds is not known now
		}
		now.add(view)
		for _, vol := range view.Volumes {
			a.announceEmptied(ctx, now, view.Node, vol)
			standing := a.judge(vol)
			count[standing]++
			if standing != standingOrphan {
				continue
			}
			log := a.log.With("volume", vol.GetName(), "volume_id", vol.GetId(), "node", view.Node,
				"claim", vol.GetOwner().GetClaimNamespace()+"/"+vol.GetOwner().GetClaimName())
			if !a.remove || removed >= orphansPerPass {
				log.Warn("orphan: no PersistentVolume and no claim knows this volume", "bytes", vol.GetSizeBytes(), "created", vol.GetCreatedAt().AsTime())
				continue
			}
			removed++
			if err := a.removeOrphan(ctx, view.Node, vol); err != nil {
				a.metrics.orphans.WithLabelValues("refused").Inc()
				log.Warn("orphan could not be removed", "error", err)
				continue
			}
			a.metrics.orphans.WithLabelValues("removed").Inc()
			log.Warn("orphan removed", "bytes", vol.GetSizeBytes())
		}
	}
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

// removeOrphan removes a volume after asking the API server itself, not a
// cache, whether anybody knows it. lvmd refuses where it is in use.
func (a *auditor) removeOrphan(ctx context.Context, node string, vol *lvmdv1.Volume) error {
	owner := vol.GetOwner()
	callCtx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	claim, err := a.client.CoreV1().PersistentVolumeClaims(owner.GetClaimNamespace()).Get(callCtx, owner.GetClaimName(), metav1.GetOptions{})
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("look for its claim: %w", err)
	case err == nil && string(claim.UID) == owner.GetClaimUid() && claim.Spec.VolumeName == "":
		return fmt.Errorf("its claim is being provisioned after all")
	}
	// By its handle: an administrator may have adopted it under another name.
	pvs, err := a.client.CoreV1().PersistentVolumes().List(callCtx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("look for its PersistentVolume: %w", err)
	}
	for _, pv := range pvs.Items {
		if pv.Spec.CSI != nil && pv.Spec.CSI.VolumeHandle == vol.GetId() {
			return fmt.Errorf("PersistentVolume %s speaks for it after all", pv.Name)
		}
	}
	deleteCtx, cancelDelete := context.WithTimeout(ctx, deleteTimeout)
	defer cancelDelete()
	return a.fleet.DeleteVolumeByID(deleteCtx, node, vol.GetId())
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
