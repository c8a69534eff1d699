package audit

import (
	"cmp"
	"context"
	"maps"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/fleet"
)

const (
	auditPass = time.Minute
	// DefaultOrphanGrace covers the time from a volume to its PersistentVolume, and the
	// replacement of a deleted PersistentVolume.
	DefaultOrphanGrace = 10 * time.Minute
	// LeastOrphanGrace is the minimum of Options.Grace.
	LeastOrphanGrace = time.Minute
)

// Auditor finds orphans, missing volumes, and unhealthy volumes and device classes. One
// goroutine at a time may make a pass.
//
// It removes orphans on request only: under the reclaim policy Retain, an administrator who
// deletes a PersistentVolume wants to keep the data, and such a volume looks the same. A
// provisional volume never had a PersistentVolume, and is removed.
type Auditor struct {
	*cluster.Cluster
	Options
	reported map[string]absence
	// orphans has the last reported result, by node and volume id.
	orphans      map[string]map[string]string
	unknownSince map[held]time.Time
	health       health
	// classes are the reported conditions, by node.
	classes    map[string]classConditions
	unlabelled map[string]unlabelled
	dataLost   map[held]time.Time
}

// Options configure an Auditor. Busy and Metrics are required.
type Options struct {
	// RemoveOrphans removes orphans instead of only reporting them.
	RemoveOrphans bool
	// Grace is the time for which no object may name an orphan. A provisional volume must
	// instead be this old, or a minute if that is less.
	Grace time.Duration
	// MissingGrace is the age from which a PersistentVolume's volume must be in its node's
	// report; zero means a minute.
	MissingGrace time.Duration
	// RemovalTimeout bounds all removals on one node in one pass; zero means a minute.
	RemovalTimeout time.Duration
	// Interval is the time between passes; zero means a minute.
	Interval time.Duration
	// Since is the start of this replica's term.
	Since   time.Time
	Busy    func(claimUID string) bool
	Metrics *Metrics
}

// New returns an Auditor without memory.
func New(c *cluster.Cluster, o Options) *Auditor {
	return &Auditor{Cluster: c, Options: o, reported: map[string]absence{}, dataLost: map[held]time.Time{}}
}

// Run makes passes until ctx is done, then resets the gauges. The caches must have synced.
func (a *Auditor) Run(ctx context.Context) error {
	defer a.Metrics.reset()
	_ = wait.PollUntilContextCancel(ctx, cmp.Or(a.Interval, auditPass), false, func(ctx context.Context) (bool, error) {
		a.Pass(ctx)
		return false, nil
	})
	return nil
}

// Standings of volumes, values of the label "standing" of carve_controller_audited_volumes.
const (
	kindKnown   = "known"   // a PersistentVolume or a claim names it
	kindYoung   = "young"   // its PersistentVolume may not be written yet, or is being replaced
	KindForeign = "foreign" // of another installation or unknown origin: never removed
	KindOrphan  = "orphan"  // ours, and unnamed beyond the grace period
	KindInline  = "inline"  // a Pod's own: the node plugin removes it
)

// Pass makes one comparison.
func (a *Auditor) Pass(ctx context.Context) { a.PassWith(ctx, a.Fleet.Views()) }

// PassWith makes a pass with the given views.
func (a *Auditor) PassWith(ctx context.Context, views []*fleet.View) {
	count := map[string]int{kindKnown: 0, kindYoung: 0, KindForeign: 0, KindOrphan: 0, KindInline: 0}
	unknown := map[held]time.Time{}
	now, found, kept := newPresent(), map[string][]*lvmdv1.Volume{}, map[string][]*lvmdv1.Volume{}
	// Map order varies: orphans that cannot be removed do not use up all attempts every time.
	for _, view := range views {
		if !view.Connected || !view.Reported() {
			now.away[view.Node] = true
			continue // its volumes are unknown
		}
		now.add(view)
		for _, vol := range view.Volumes {
			a.reportDataLoss(ctx, now, view.Node, vol)
			kind := a.Classify(vol)
			if kind == KindOrphan && !vol.GetProvisional() {
				vol := held{view.Node, vol.GetId()}
				unknown[vol] = cmp.Or(a.unknownSince[vol], a.Now())
				if a.Now().Sub(unknown[vol]) < a.Grace {
					kind = kindYoung
				}
			}
			count[kind]++
			switch {
			case kind == KindOrphan:
				found[view.Node] = append(found[view.Node], vol)
			case vol.GetProvisional() && a.isNamed(vol):
				kept[view.Node] = append(kept[view.Node], vol)
			}
		}
	}
	for vol, since := range a.unknownSince {
		if now.away[vol.node] {
			unknown[vol] = since
		}
	}
	a.unknownSince = unknown
	a.keep(ctx, kept)
	maps.DeleteFunc(a.dataLost, func(vol held, _ time.Time) bool { return !now.mayHold(vol) })
	a.reportHealth(ctx, now)
	a.reportClasses(now)
	a.reportUnlabelled(now)
	for kind, n := range count {
		a.Metrics.Audited.WithLabelValues(kind).Set(float64(n))
	}
	for cause, n := range a.compare(ctx, now) {
		a.Metrics.Missing.WithLabelValues(cause).Set(float64(n))
	}
	a.orphans = a.handleOrphans(ctx, found, now.away) // last, as it waits for nodes
}

// Classify returns the kind of a volume by the current caches.
func (a *Auditor) Classify(vol *lvmdv1.Volume) string {
	owner := vol.GetOwner()
	if owner.GetPodUid() != "" {
		return KindInline
	}
	uid, named := strings.CutPrefix(vol.GetName(), "pvc-")
	if owner.GetClusterId() == "" || owner.GetClusterId() != a.ID || !named || uid != owner.GetClaimUid() {
		return KindForeign
	}
	if a.isNamed(vol) || a.isClaimed(vol) {
		return kindKnown
	}
	claim := a.Claim(uid)
	if claim != nil && claim.Spec.VolumeName == "" || a.Busy(uid) {
		return kindKnown // being provisioned
	}
	if vol.GetAdoptedFrom() != "" {
		return KindForeign // Until its adoption is final, it may return to another driver.
	}
	if vol.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY ||
		vol.GetProvisional() && a.Now().Sub(vol.GetCreatedAt().AsTime()) < min(a.Grace, LeastOrphanGrace) {
		return kindYoung
	}
	return KindOrphan
}

// isNamed reports whether a PersistentVolume names a volume; on an error it assumes so.
func (a *Auditor) isNamed(vol *lvmdv1.Volume) bool {
	pvs, err := a.Volumes.GetIndexer().ByIndex(cluster.ByHandle, vol.GetId())
	return err != nil || len(pvs) > 0
}

// isClaimed reports whether a claim names a volume whose PersistentVolume is gone: an
// administrator may be replacing it. If a PersistentVolume of that name exists, the claim
// belongs to the volume it names.
func (a *Auditor) isClaimed(vol *lvmdv1.Volume) bool {
	_, err := a.VolumeLister.Get(vol.GetName())
	return err != nil && a.ClaimNaming(vol.GetName()) != ""
}

// Remembered returns the number of unhealthy volumes and of inline volumes with lost data
// whose users were notified.
func (a *Auditor) Remembered() (unhealthy, dataLost int) {
	return len(a.health.reported), len(a.dataLost)
}
