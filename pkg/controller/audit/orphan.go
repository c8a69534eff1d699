package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/quantity"
)

const (
	// OrphansPerPass bounds how many removals one pass tries. Each asks the API server
	// for all PersistentVolumes.
	OrphansPerPass = 20
	// OrphansNamed bounds how many volumes one Event names: a node that returns with
	// its old disks may hold a thousand orphans. The log names all.
	OrphansNamed = 5
	// keepTimeout bounds how long a pass waits until nodes noted what is kept, nodeKeepTimeout how long
	// for one node, and nodesKeeping how many are asked at once.
	keepTimeout, nodeKeepTimeout = 10 * time.Second, 2 * time.Second
	nodesKeeping                 = 16
)

// What became of an orphan. All but the first are values of the label "result" of
// carve_controller_orphans_total.
const (
	orphanFound       = "found"       // no removal was tried
	OrphanRemoved     = "removed"     // it is gone
	OrphanInUse       = "in_use"      // it is mounted or open on its node, which refuses
	OrphanKnown       = "known"       // the API server knows it after all
	OrphanUnconfirmed = "unconfirmed" // the API server could not be asked
	OrphanFailed      = "failed"      // its node could not remove it
)

// keep has nodes note of provisional volumes that PersistentVolumes name them. Most are noted by
// their nodes before, as Pods get them. What fails, the next pass does; maps have no order, so that
// nodes that do not answer do not always come first.
func (a *Auditor) keep(ctx context.Context, provisional map[string][]*lvmdv1.Volume) {
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	var asking errgroup.Group
	asking.SetLimit(nodesKeeping)
	for node, volumes := range provisional {
		asking.Go(func() error { a.keepOn(ctx, node, volumes); return nil })
	}
	_ = asking.Wait()
}

// keepOn is keep for one node.
func (a *Auditor) keepOn(ctx context.Context, node string, provisional []*lvmdv1.Volume) {
	ctx, cancel := context.WithTimeout(ctx, nodeKeepTimeout)
	defer cancel()
	for _, vol := range provisional {
		if err := a.Fleet.KeepVolume(ctx, node, vol.GetId()); err != nil {
			a.Log.Debug("that a PersistentVolume names a volume is not noted on its node", "volume", vol.GetName(), "volume_id", vol.GetId(), "node", node, "error", err)
			return
		}
	}
}

// handleOrphans removes orphans of one node, if that was asked for, or if they are provisional, and
// the pass has attempts left, and returns what became of each, by volume id. Events on the
// node say what changed.
func (a *Auditor) handleOrphans(ctx context.Context, node string, orphans []*lvmdv1.Volume, attempts *int) map[string]string {
	before, became, changed := a.orphans[node], map[string]string{}, map[string][]string{}
	for _, vol := range orphans {
		id := vol.GetId()
		log := a.Log.With("volume", vol.GetName(), "volume_id", id, "node", node,
			"claim", vol.GetOwner().GetClaimNamespace()+"/"+vol.GetOwner().GetClaimName())
		result, entry := cmp.Or(before[id], orphanFound), describeOrphan(vol)
		if !a.RemoveOrphans && !vol.GetProvisional() || *attempts == 0 {
			log.Warn("orphan: no PersistentVolume and no claim knows this volume", "bytes", vol.GetSizeBytes(), "created", vol.GetCreatedAt().AsTime())
		} else {
			*attempts--
			var err error
			result, err = a.removeOrphan(ctx, node, vol)
			switch {
			case ctx.Err() != nil:
				return before // the next leader tries it
			case result == "":
				continue
			case err != nil:
				log.Warn("orphan could not be removed", "result", result, "error", err)
				entry += ": " + err.Error()
			default:
				log.Warn("orphan removed", "bytes", vol.GetSizeBytes())
			}
			a.Metrics.Orphans.WithLabelValues(result).Inc()
		}
		became[id] = result
		if result != before[id] {
			changed[result] = append(changed[result], entry)
		}
	}
	if !a.reportOrphans(node, changed) {
		return before
	}
	return became
}

func describeOrphan(vol *lvmdv1.Volume) string {
	return fmt.Sprintf("%s (%s, made for claim %s/%s)", vol.GetId(), quantity.Bytes(vol.GetSizeBytes()),
		vol.GetOwner().GetClaimNamespace(), vol.GetOwner().GetClaimName())
}

// reportOrphans writes what changed of a node's orphans, in one Event for each result: of
// Events on one object Kubernetes lets far fewer pass than there may be orphans. It returns
// false where there is no Node object to write them on.
func (a *Auditor) reportOrphans(name string, changed map[string][]string) bool {
	if len(changed) == 0 {
		return true
	}
	node, err := a.NodeLister.Get(name)
	if err != nil {
		return false
	}
	for _, result := range slices.Sorted(maps.Keys(changed)) {
		volumes := changed[result]
		which := strings.Join(volumes[:min(len(volumes), OrphansNamed)], "; ")
		if more := len(volumes) - OrphansNamed; more > 0 {
			which += fmt.Sprintf("; and %d more, which the log of the controller names", more)
		}
		switch {
		case result == OrphanRemoved:
			a.Recorder.Eventf(node, v1.EventTypeNormal, cluster.ReasonOrphanRemoved, "removed, as no PersistentVolume and no claim knew them: %s", which)
		case result == orphanFound && a.RemoveOrphans:
			a.Recorder.Eventf(node, v1.EventTypeWarning, cluster.ReasonOrphanFound, "to be removed, as no PersistentVolume and no claim knows them: %s", which)
		case result == orphanFound:
			a.Recorder.Eventf(node, v1.EventTypeWarning, cluster.ReasonOrphanFound, "kept, though no PersistentVolume and no claim knows them: %s. "+
				"Write a PersistentVolume for what is needed, and delete the rest on the node, or have the controller do it by --remove-orphans", which)
		default:
			a.Recorder.Eventf(node, v1.EventTypeWarning, cluster.ReasonOrphanKept, "not removed, and tried again: %s", which)
		}
	}
	return true
}

// removeOrphan removes a volume after asking the API server itself, not a
// cache, whether an object names it. lvmd refuses where it is in use. There is no result where a
// Pod got the volume after its node's last report: the next pass sees what it is then.
func (a *Auditor) removeOrphan(ctx context.Context, node string, vol *lvmdv1.Volume) (result string, err error) {
	owner := vol.GetOwner()
	callCtx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
	defer cancel()
	claim, err := a.Client.CoreV1().PersistentVolumeClaims(owner.GetClaimNamespace()).Get(callCtx, owner.GetClaimName(), metav1.GetOptions{})
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return OrphanUnconfirmed, fmt.Errorf("look for its claim: %w", err)
	case err == nil && string(claim.UID) == owner.GetClaimUid() && claim.Spec.VolumeName == "":
		return OrphanKnown, errors.New("its claim is being provisioned after all")
	case err == nil && string(claim.UID) == owner.GetClaimUid() && !a.RemoveOrphans:
		return OrphanKnown, fmt.Errorf("it had PersistentVolume %s, which its claim names", claim.Spec.VolumeName)
	}
	// By its handle: an administrator may have adopted it under another name.
	pvs, err := a.Client.CoreV1().PersistentVolumes().List(callCtx, metav1.ListOptions{})
	if err != nil {
		return OrphanUnconfirmed, fmt.Errorf("look for its PersistentVolume: %w", err)
	}
	for _, pv := range pvs.Items {
		if pv.Spec.CSI != nil && pv.Spec.CSI.VolumeHandle == vol.GetId() {
			return OrphanKnown, fmt.Errorf("PersistentVolume %s names it after all", pv.Name)
		}
	}
	deleteCtx, cancelDelete := context.WithTimeout(ctx, cluster.DeleteTimeout)
	defer cancelDelete()
	remove := a.Fleet.DeleteProvisionalVolume
	if a.RemoveOrphans {
		remove = a.Fleet.DeleteVolumeByID
	}
	err = remove(deleteCtx, node, vol.GetId())
	switch {
	case err == nil:
		return OrphanRemoved, nil
	case fleet.Reason(err) == names.ReasonVolumeKept:
		return "", nil
	case fleet.Reason(err) == names.ReasonVolumeInUse:
		return OrphanInUse, errors.New(cluster.Refusal(node, err))
	}
	return OrphanFailed, errors.New(cluster.Refusal(node, err))
}
