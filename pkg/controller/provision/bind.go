package provision

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/objects"
)

// finish looks after a claim whose PersistentVolume exists, once the PV controller has bound it.
// Only the PV controller can: it calls a claim Lost that is bound to a volume which it has not seen
// yet, and what it has seen, no other component can know.
func (p *Provisioner) finish(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	if !objects.BelongsTo(pv, claim) || pv.DeletionTimestamp != nil ||
		claim.Spec.VolumeName != pv.Name || claim.Status.Phase != v1.ClaimBound || !metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted) {
		return nil // The PV controller's work is an event.
	}
	if _, selected := p.attempts.get(a.uid); !selected.selectedAt.IsZero() {
		p.Metrics.boundSeconds.Observe(p.Now().Sub(selected.selectedAt).Seconds())
		p.attempts.change(a.uid, func(s *selection) { s.selectedAt = time.Time{} })
	}
	if err := p.removeStrays(ctx, a, pv); err != nil {
		return err
	}
	p.forget(a)
	return nil
}

// persistentVolumes reads and writes those of claims.
type persistentVolumes struct{ *cluster.Cluster }

// find returns the claim's PersistentVolume, if there is one yet: the cached one, or for a while
// the one that we wrote.
func (v persistentVolumes) find(name string, w *written) *v1.PersistentVolume {
	if pv, err := v.VolumeLister.Get(name); err == nil {
		return pv
	}
	if w.pv != nil && v.Now().Sub(w.at) > cacheLag {
		w.pv = nil // it was deleted
	}
	return w.pv
}
