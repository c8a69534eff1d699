package provision

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
)

// Once the PersistentVolume is written, the PV controller binds the claim to
// it, with four calls of a client that is limited to 20 per second by default:
// in a burst, claims wait for it for many seconds. The scheduler looks for the
// result once per second, counted from the selection.
//
// So the PV controller is given a moment. What it did not do by then is done
// here, write for write as it would have done it (k8s.io/kubernetes
// pkg/controller/volume/persistentvolume, bind): the volume's phase, the claim's
// volume name and annotations, the claim's status. Its own writes then find
// everything in place. Where it is quick enough, none of these writes is ours.
//
// Two things could go wrong by being too quick. A claim that is bound before
// the PV controller has taken its volume in is called Lost: see PVController, which
// knows when that is ruled out. And a claim that changes while the PV controller
// is about to annotate it earns a warning Event about the conflict, which is
// harmless but alarming: so the annotation is waited for, for a while.
//
// Should a claim be called Lost nevertheless, it is put right at once, and not
// only at the PV controller's next pass over everything.
const (
	// CompleteAfter is how long the volume must have been in our cache.
	CompleteAfter = 100 * time.Millisecond
	// annotationTimeout is how long after the selection the PV controller may
	// take to annotate the claim; the scheduler looks after a second.
	annotationTimeout = 600 * time.Millisecond
	// LookAgain is the pause while another component is expected to act.
	LookAgain = 200 * time.Millisecond
	// cachePause is the pause while our cache is expected to show what we wrote.
	cachePause = 20 * time.Millisecond
)

// finish looks after a claim whose PersistentVolume exists, until it is bound.
func (p *Provisioner) finish(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (time.Duration, error) {
	if !cluster.BelongsTo(pv, claim) || pv.DeletionTimestamp != nil {
		return 0, nil // not ours to bind
	}
	_, selected := p.attempts.get(a.uid)
	if claim.Spec.VolumeName == pv.Name && claim.Status.Phase == v1.ClaimBound && metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted) {
		if !selected.selectedAt.IsZero() {
			p.Metrics.boundSeconds.Observe(p.Now().Sub(selected.selectedAt).Seconds())
			p.attempts.change(a.uid, func(s *selection) { s.selectedAt = time.Time{} })
		}
		if err := p.removeStrays(ctx, a, pv); err != nil {
			return 0, err
		}
		p.forget(a)
		return 0, nil
	}
	if !p.CompleteBinding {
		return 0, nil // the PV controller's work is an event
	}
	if again, err := p.binder.awaitPVController(ctx, &a.written, selected.selectedAt, claim, pv); again > 0 || err != nil {
		return again, err
	}
	return p.binder.completeClaim(ctx, claim, pv)
}

// binder does what the PV controller would do next for a claim.
type binder struct {
	*cluster.Cluster
	pvController *PVController
}

// awaitPVController returns how long to wait before the claim may be bound by
// us, or 0.
func (b binder) awaitPVController(ctx context.Context, w *written, selectedAt time.Time, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (time.Duration, error) {
	annotated := metav1.HasAnnotation(claim.ObjectMeta, volume.AnnStorageProvisioner)
	if b.pvController.MayBeBehind() {
		if annotated && b.pvController.hasTaken(pv.Name) {
			return 0, nil
		}
		return LookAgain, nil // or until the PV controller bound it
	}
	now := b.Now()
	if w.seenAt.IsZero() {
		if _, err := b.VolumeLister.Get(pv.Name); err != nil {
			return cachePause, nil //nolint:nilerr // not there yet
		}
		w.seenAt = now
	}
	left := w.seenAt.Add(CompleteAfter).Sub(now)
	if !annotated {
		left = max(left, selectedAt.Add(annotationTimeout).Sub(now))
	}
	if left > 0 {
		return left, nil
	}
	// The phase is written before the claim. Else the PV controller's worker for volumes would
	// write it, and while that call waits for its turn, the worker takes no volume in.
	if w.pv != nil && w.pv.Status.Phase != v1.VolumeBound && pv.Status.Phase != v1.VolumeBound {
		if err := b.markVolumeBound(ctx, w); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// markVolumeBound sets the phase of a PersistentVolume that we just wrote. It
// is guarded by the version that was written: where another component changed the
// volume since, that is the PV controller at work.
func (b binder) markVolumeBound(ctx context.Context, w *written) error {
	patch, err := cluster.Patch(w.pv, cluster.Exact, func(pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumeBound })
	if err != nil {
		return fmt.Errorf("mark volume bound: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
	defer cancel()
	b.pvController.writesPhase(w.pv.Name)
	pv, err := b.Client.CoreV1().PersistentVolumes().Patch(ctx, w.pv.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		if apierrors.IsNotFound(err) {
			b.pvController.VolumeDeleted(w.pv.Name) // It may have been seen deleted before.
		}
		marked := w.pv.DeepCopy()
		marked.Status.Phase = v1.VolumeBound // as far as we are concerned
		w.pv = marked
		return nil
	case err != nil:
		return fmt.Errorf("mark volume bound: %w", err)
	}
	w.pv = pv
	return nil
}

// completeClaim writes the claim's side of the binding. The uid in the patch
// pins it to this claim; spec.VolumeName can be set only once, so a claim that
// was bound elsewhere in the meantime refuses the patch.
func (b binder) completeClaim(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
	defer cancel()
	claims := b.Client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	if claim.Spec.VolumeName == "" || !metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted) {
		patch, err := cluster.Patch(claim, cluster.SameObject, func(c *v1.PersistentVolumeClaim) {
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBindCompleted, "yes")
			// The PV controller's request to us, which it may not have got around
			// to. Others read it to learn who made a volume.
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnStorageProvisioner, names.Driver)
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBetaStorageProvisioner, names.Driver)
			if c.Spec.VolumeName == "" {
				metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBoundByController, "yes")
			}
			c.Spec.VolumeName = pv.Name
		})
		if err != nil {
			return 0, fmt.Errorf("bind claim: %w", err)
		}
		claim, err = claims.Patch(ctx, claim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		switch {
		case apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsInvalid(err):
			return 0, nil // gone, replaced or bound elsewhere: its events follow
		case err != nil:
			return 0, fmt.Errorf("bind claim: %w", err)
		}
	}
	if claim.Status.Phase == v1.ClaimBound {
		return 0, nil
	}
	patch, err := cluster.Patch(claim, cluster.Exact, func(c *v1.PersistentVolumeClaim) {
		c.Status.Phase, c.Status.AccessModes, c.Status.Capacity = v1.ClaimBound, pv.Spec.AccessModes, pv.Spec.Capacity
		c.Status.CurrentVolumeAttributesClassName = pv.Spec.VolumeAttributesClassName
	})
	if err != nil {
		return 0, fmt.Errorf("set claim's status: %w", err)
	}
	_, err = claims.Patch(ctx, claim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsConflict(err):
		return LookAgain, nil // most likely the PV controller has just set it
	case err != nil && !apierrors.IsNotFound(err):
		return 0, fmt.Errorf("set claim's status: %w", err)
	}
	return 0, nil
}

// persistentVolume returns the claim's PersistentVolume, if there is one yet:
// the cached one, or for a while the one that we wrote.
func (b binder) persistentVolume(name string, w *written) *v1.PersistentVolume {
	if pv, err := b.VolumeLister.Get(name); err == nil {
		return pv
	}
	if w.pv != nil && b.Now().Sub(w.at) > cacheLag {
		w.pv = nil // it was deleted
	}
	return w.pv
}
