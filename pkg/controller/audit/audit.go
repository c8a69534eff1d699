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
	// auditPass is how often nodes and API are compared.
	auditPass = time.Minute
	// DefaultOrphanGrace is for Options.Grace: a PersistentVolume is written
	// after its volume is made, and may be deleted to be replaced.
	DefaultOrphanGrace = 10 * time.Minute
	// LeastOrphanGrace is the shortest that Options.Grace may be.
	LeastOrphanGrace = time.Minute
)

// Auditor compares what the nodes hold with what the API knows: volumes that no object names
// (orphans), PersistentVolumes whose volume is missing, and volumes and device classes that are unhealthy.
//
// Orphans are counted and reported, and removed only if that was asked for: under the
// reclaim policy Retain, an administrator who deletes a PersistentVolume means to
// keep the data, and such a volume looks the same. One that is provisional had no
// PersistentVolume, and is removed. See orphan.go.
// A volume that is missing is never made again by itself: its user is notified. See
// missing.go. A pass is made by one goroutine at a time.
type Auditor struct {
	*cluster.Cluster
	Options
	// reported has the missing volumes of which users were notified, by PersistentVolume.
	reported map[string]absence
	// orphans is what became of orphans, by node and volume id, as it was reported.
	orphans map[string]map[string]string
	// unknownSince is when volumes were first seen that no object knows.
	unknownSince map[held]time.Time
	// health is what is wrong with volumes that are there.
	health health
	// classes are the conditions of device classes, as was reported, by node.
	classes map[string]classConditions
	// unlabelled are the nodes whose topology label the last passes found missing or wrong, by name.
	unlabelled map[string]unlabelled
	// dataLost is when inline volumes lost their data, of which their Pods were notified since
	// Options.Since.
	dataLost map[held]time.Time
}

// Options say how an auditor works. Busy and Metrics are required.
type Options struct {
	// RemoveOrphans has orphans removed, not only reported.
	RemoveOrphans bool
	// Grace is for how long no object must have known a volume that is an orphan; of a provisional one, it is how old that must
	// be, and a minute at most.
	Grace time.Duration
	// MissingGrace is how old a PersistentVolume must be before its volume's absence from the
	// node's report means anything; zero means a minute.
	MissingGrace time.Duration
	// RemovalTimeout bounds all removals of orphans on one node in one pass; zero means a minute.
	RemovalTimeout time.Duration
	// Interval is the time from one pass to the next; zero means a minute.
	Interval time.Duration
	// Since is when this replica began to lead.
	Since time.Time
	// Busy reports whether a claim, which is given by its UID, is being worked on.
	Busy    func(claimUID string) bool
	Metrics *Metrics
}

// New makes an auditor that remembers nothing yet.
func New(c *cluster.Cluster, o Options) *Auditor {
	return &Auditor{Cluster: c, Options: o, reported: map[string]absence{}, dataLost: map[held]time.Time{}}
}

// Run works until ctx is done. The caches must have synced. A replica that does not lead any more counts nothing.
func (a *Auditor) Run(ctx context.Context) error {
	defer a.Metrics.reset()
	_ = wait.PollUntilContextCancel(ctx, cmp.Or(a.Interval, auditPass), false, func(ctx context.Context) (bool, error) {
		a.Pass(ctx)
		return false, nil
	})
	return nil
}

// Kinds of volumes on a node, and the label "standing" of
// carve_controller_audited_volumes.
const (
	kindKnown   = "known"   // a PersistentVolume or a claim names it
	kindYoung   = "young"   // none does, but it may just have been made, or its PersistentVolume is replaced
	KindForeign = "foreign" // another installation's, or of unknown origin: not ours to remove
	KindOrphan  = "orphan"  // ours, and no object has named it for long
	KindInline  = "inline"  // a Pod's own: its node's plugin removes it
)

// Pass compares everything once.
func (a *Auditor) Pass(ctx context.Context) { a.PassWith(ctx, a.Fleet.Views()) }

// PassWith is Pass with these views of the nodes.
func (a *Auditor) PassWith(ctx context.Context, views []*fleet.View) {
	count := map[string]int{kindKnown: 0, kindYoung: 0, KindForeign: 0, KindOrphan: 0, KindInline: 0}
	unknown := map[held]time.Time{}
	now, found, kept := newPresent(), map[string][]*lvmdv1.Volume{}, map[string][]*lvmdv1.Volume{}
	// Volumes come in no order: orphans that cannot be removed do not use all attempts up for ever.
	for _, view := range views {
		if !view.Connected || !view.Reported() {
			now.away[view.Node] = true
			continue // what it holds is not known now
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
	a.orphans = a.handleOrphans(ctx, found, now.away) // last, for it waits for nodes
}

// Classify returns the kind of a volume on a node, by what the caches have now.
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
		return KindForeign // Its adoption is under way, or can be reverted: it may be another driver's again.
	}
	if vol.GetState() != lvmdv1.VolumeState_VOLUME_STATE_READY ||
		vol.GetProvisional() && a.Now().Sub(vol.GetCreatedAt().AsTime()) < min(a.Grace, LeastOrphanGrace) {
		return kindYoung
	}
	return KindOrphan
}

// isNamed reports whether a PersistentVolume names a volume, or may do so.
func (a *Auditor) isNamed(vol *lvmdv1.Volume) bool {
	pvs, err := a.Volumes.GetIndexer().ByIndex(cluster.ByHandle, vol.GetId())
	return err != nil || len(pvs) > 0
}

// isClaimed reports whether a claim names a volume whose PersistentVolume is gone, which an administrator may
// be replacing. If there is one of that name, the claim names that one's volume.
func (a *Auditor) isClaimed(vol *lvmdv1.Volume) bool {
	_, err := a.VolumeLister.Get(vol.GetName())
	return err != nil && a.ClaimNaming(vol.GetName()) != ""
}

// Remembered returns of how many unhealthy volumes, and of how many inline volumes that lost
// their data, it is known that their users were notified.
func (a *Auditor) Remembered() (unhealthy, dataLost int) {
	return len(a.health.reported), len(a.dataLost)
}
