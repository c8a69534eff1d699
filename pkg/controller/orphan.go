package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/fleet"
)

const (
	// orphansPerPass bounds how many removals one pass tries. Each asks the API server
	// for all PersistentVolumes.
	orphansPerPass = 20
	// orphansNamed bounds how many volumes one Event names: a node that returns with
	// its old disks may hold a thousand orphans. The log names all.
	orphansNamed = 5
)

// What became of an orphan. All but the first are values of the label "result" of
// carve_controller_orphans_total.
const (
	orphanFound       = "found"       // no removal was tried
	orphanRemoved     = "removed"     // it is gone
	orphanInUse       = "in_use"      // it is mounted or open on its node, which refuses
	orphanKnown       = "known"       // the API server knows it after all
	orphanUnconfirmed = "unconfirmed" // the API server could not be asked
	orphanFailed      = "failed"      // its node could not remove it
)

// dealWithOrphans removes orphans of one node, if that was asked for and the pass
// has attempts left, and returns what became of each, by volume id. Events on the
// node tell what is new.
func (a *auditor) dealWithOrphans(ctx context.Context, node string, orphans []*lvmdv1.Volume, attempts *int) map[string]string {
	before, became, news := a.orphans[node], map[string]string{}, map[string][]string{}
	for _, vol := range orphans {
		id := vol.GetId()
		log := a.log.With("volume", vol.GetName(), "volume_id", id, "node", node,
			"claim", vol.GetOwner().GetClaimNamespace()+"/"+vol.GetOwner().GetClaimName())
		result, told := cmp.Or(before[id], orphanFound), describeOrphan(vol)
		if !a.remove || *attempts == 0 {
			log.Warn("orphan: no PersistentVolume and no claim knows this volume", "bytes", vol.GetSizeBytes(), "created", vol.GetCreatedAt().AsTime())
		} else {
			*attempts--
			var err error
			result, err = a.removeOrphan(ctx, node, vol)
			switch {
			case ctx.Err() != nil:
				return before // whoever leads next tries it
			case err != nil:
				log.Warn("orphan could not be removed", "result", result, "error", err)
				told += ": " + err.Error()
			default:
				log.Warn("orphan removed", "bytes", vol.GetSizeBytes())
			}
			a.metrics.orphans.WithLabelValues(result).Inc()
		}
		became[id] = result
		if result != before[id] {
			news[result] = append(news[result], told)
		}
	}
	if !a.tellOfOrphans(node, news) {
		return before
	}
	return became
}

func describeOrphan(vol *lvmdv1.Volume) string {
	return fmt.Sprintf("%s (%s, made for claim %s/%s)", vol.GetId(), resource.NewQuantity(vol.GetSizeBytes(), resource.BinarySI),
		vol.GetOwner().GetClaimNamespace(), vol.GetOwner().GetClaimName())
}

// tellOfOrphans tells what is new of a node's orphans, by result, in one Event for
// each: of Events on one object Kubernetes lets far fewer pass than there may be
// orphans. It reports false where there is no Node object to tell.
func (a *auditor) tellOfOrphans(name string, news map[string][]string) bool {
	if len(news) == 0 {
		return true
	}
	node, err := a.nodeLister.Get(name)
	if err != nil {
		return false
	}
	for _, result := range slices.Sorted(maps.Keys(news)) {
		volumes := news[result]
		which := strings.Join(volumes[:min(len(volumes), orphansNamed)], "; ")
		if more := len(volumes) - orphansNamed; more > 0 {
			which += fmt.Sprintf("; and %d more, which the log of the controller names", more)
		}
		switch {
		case result == orphanRemoved:
			a.recorder.Eventf(node, v1.EventTypeNormal, reasonOrphanRemoved, "removed, as no PersistentVolume and no claim knew them: %s", which)
		case result == orphanFound && a.remove:
			a.recorder.Eventf(node, v1.EventTypeWarning, reasonOrphanFound, "to be removed, as no PersistentVolume and no claim knows them: %s", which)
		case result == orphanFound:
			a.recorder.Eventf(node, v1.EventTypeWarning, reasonOrphanFound, "kept, though no PersistentVolume and no claim knows them: %s. "+
				"Write a PersistentVolume for what is needed, and delete the rest on the node, or have the controller do it by --remove-orphans", which)
		default:
			a.recorder.Eventf(node, v1.EventTypeWarning, reasonOrphanKept, "not removed, and tried again: %s", which)
		}
	}
	return true
}

// removeOrphan removes a volume after asking the API server itself, not a
// cache, whether anybody knows it. lvmd refuses where it is in use.
func (a *auditor) removeOrphan(ctx context.Context, node string, vol *lvmdv1.Volume) (result string, err error) {
	owner := vol.GetOwner()
	callCtx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	claim, err := a.client.CoreV1().PersistentVolumeClaims(owner.GetClaimNamespace()).Get(callCtx, owner.GetClaimName(), metav1.GetOptions{})
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return orphanUnconfirmed, fmt.Errorf("look for its claim: %w", err)
	case err == nil && string(claim.UID) == owner.GetClaimUid() && claim.Spec.VolumeName == "":
		return orphanKnown, errors.New("its claim is being provisioned after all")
	}
	// By its handle: an administrator may have adopted it under another name.
	pvs, err := a.client.CoreV1().PersistentVolumes().List(callCtx, metav1.ListOptions{})
	if err != nil {
		return orphanUnconfirmed, fmt.Errorf("look for its PersistentVolume: %w", err)
	}
	for _, pv := range pvs.Items {
		if pv.Spec.CSI != nil && pv.Spec.CSI.VolumeHandle == vol.GetId() {
			return orphanKnown, fmt.Errorf("PersistentVolume %s speaks for it after all", pv.Name)
		}
	}
	deleteCtx, cancelDelete := context.WithTimeout(ctx, deleteTimeout)
	defer cancelDelete()
	err = a.fleet.DeleteVolumeByID(deleteCtx, node, vol.GetId())
	switch {
	case err == nil:
		return orphanRemoved, nil
	case fleet.Reason(err) == names.ReasonVolumeInUse:
		return orphanInUse, errors.New(refusal(node, err))
	}
	return orphanFailed, errors.New(refusal(node, err))
}
