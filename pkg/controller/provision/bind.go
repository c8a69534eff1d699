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

// finish waits until the PV controller has bound the claim. Binding it here is no option: the
// PV controller marks a claim Lost if it is bound to a volume that it has not seen yet.
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

type persistentVolumes struct{ *cluster.Cluster }

// find returns the cached PersistentVolume, or for cacheLag the one just written, or nil.
func (v persistentVolumes) find(name string, w *written) *v1.PersistentVolume {
	if pv, err := v.VolumeLister.Get(name); err == nil {
		return pv
	}
	if w.pv != nil && v.Now().Sub(w.at) > cacheLag {
		w.pv = nil // it was deleted
	}
	return w.pv
}
