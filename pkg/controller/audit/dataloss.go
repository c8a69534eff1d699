package audit

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
)

// dataLossMemory is the usual lifetime of Events.
const dataLossMemory = time.Hour

func (a *Auditor) reportDataLoss(ctx context.Context, now *present, node string, vol *lvmdv1.Volume) {
	if vol.GetEmptiedAt() == nil {
		return
	}
	when := vol.GetEmptiedAt().AsTime()
	var users []runtime.Object
	if vol.GetOwner().GetPodUid() != "" {
		if !a.inlineDataLost(held{node, vol.GetId()}, when) {
			return
		}
	} else {
		pv := a.noteDataLoss(ctx, node, vol, when)
		if pv == nil {
			return
		}
		users = append(users, pv)
	}
	message := fmt.Sprintf("volume %s is empty since %s: node %s was restarted, and the key that the volume was encrypted with is gone with what it held",
		vol.GetId(), when.UTC().Format(time.RFC3339), node)
	a.Log.Warn("an encrypted volume lost its data", "volume", vol.GetName(), "volume_id", vol.GetId(), "node", node, "since", when)
	for _, user := range append(users, a.usersOfVolume(ctx, now, node, vol)...) {
		a.Recorder.Event(user, v1.EventTypeWarning, cluster.ReasonVolumeEmptied, message)
	}
}

// noteDataLoss records the notification on the PersistentVolume, for later leaders. It returns
// nil if no notification is due or it cannot be recorded.
func (a *Auditor) noteDataLoss(ctx context.Context, node string, vol *lvmdv1.Volume, at time.Time) *v1.PersistentVolume {
	pv := a.VolumeOn(node, vol.GetId())
	when := at.UTC().Format(time.RFC3339)
	if pv == nil || pv.DeletionTimestamp != nil || pv.Annotations[names.AnnotationEmptied] >= when {
		return nil
	}
	_, err := cluster.Apply(ctx, a.Client.CoreV1().PersistentVolumes(), pv, cluster.Exact, func(pv *v1.PersistentVolume) {
		metav1.SetMetaDataAnnotation(&pv.ObjectMeta, names.AnnotationEmptied, when)
	})
	if err != nil {
		a.Log.Info("a lost key is reported later", "volume", pv.Name, "error", err)
		return nil
	}
	return pv
}

// inlineDataLost reports whether to notify the Pod. Without a PersistentVolume nothing records
// that. Losses over an hour before this term count as reported; later ones may not be, if the
// previous leader ended with the node.
func (a *Auditor) inlineDataLost(vol held, at time.Time) bool {
	if !at.After(a.dataLost[vol]) || at.Before(a.Since.Add(-dataLossMemory)) {
		return false
	}
	a.dataLost[vol] = at
	return true
}
