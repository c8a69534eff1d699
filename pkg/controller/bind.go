package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	"github.com/carve-csi/carve/api/names"
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
// everything in place.
//
// Two things could go wrong by being too quick. A claim that is bound before
// the PV controller has taken its volume in is called Lost: see pace, which
// tells when that is ruled out. And a claim that changes while the PV controller
// is about to annotate it earns a warning Event about the conflict, which is
// harmless but alarming: so the annotation is waited for, for a while.
//
// Should a claim be called Lost nevertheless, it is put right at once, and not
// only at the PV controller's next pass over everything.
const (
	// completeAfter is how long the volume must have been in our cache.
	completeAfter = 100 * time.Millisecond
	// annotationPatience is how long after the selection the PV controller may
	// take to annotate the claim; the scheduler looks after a second.
	annotationPatience = 600 * time.Millisecond
	// lookAgain is the pause while somebody else is expected to act.
	lookAgain = 200 * time.Millisecond
	// cachePause is the pause while our cache is expected to show what we wrote.
	cachePause = 20 * time.Millisecond
)

// finish looks after a claim whose PersistentVolume exists, until it is bound.
func (p *provisioner) finish(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (time.Duration, error) {
	if !belongsTo(pv, claim) || pv.DeletionTimestamp != nil {
		return 0, nil // not ours to bind
	}
	if claim.Spec.VolumeName == pv.Name && claim.Status.Phase == v1.ClaimBound && metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted) {
		p.mu.Lock()
		selectedAt := a.selectedAt
		p.mu.Unlock()
		if !selectedAt.IsZero() {
			p.metrics.boundSeconds.Observe(p.now().Sub(selectedAt).Seconds())
			p.mu.Lock()
			a.selectedAt = time.Time{} // counted
			p.mu.Unlock()
		}
		if err := p.removeStrays(ctx, a, pv); err != nil {
			return 0, err
		}
		p.forget(a)
		return 0, nil
	}
	if !p.completeBinding {
		return 0, nil // the PV controller's work is an event
	}
	if again, err := p.awaitPVController(ctx, a, claim, pv); again > 0 || err != nil {
		return again, err
	}
	return p.completeClaim(ctx, claim, pv)
}

// awaitPVController returns how long to wait before the claim may be bound by
// us, or 0.
func (p *provisioner) awaitPVController(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (time.Duration, error) {
	annotated := metav1.HasAnnotation(claim.ObjectMeta, volume.AnnStorageProvisioner)
	if p.pace.doubt() {
		if annotated && p.pace.hasTaken(pv.Name) {
			return 0, nil
		}
		return lookAgain, nil // or until the PV controller bound it
	}
	if a.pv != nil && a.pv.Status.Phase != v1.VolumeBound {
		if err := p.markVolumeBound(ctx, a); err != nil {
			return 0, err
		}
	}
	now := p.now()
	if a.pvSeenAt.IsZero() {
		if _, err := p.volumeLister.Get(pv.Name); err != nil {
			return cachePause, nil //nolint:nilerr // not there yet
		}
		a.pvSeenAt = now
	}
	left := a.pvSeenAt.Add(completeAfter).Sub(now)
	if !annotated {
		p.mu.Lock()
		left = max(left, a.selectedAt.Add(annotationPatience).Sub(now))
		p.mu.Unlock()
	}
	return max(left, 0), nil
}

// markVolumeBound sets the phase of a PersistentVolume that we just wrote. It
// is guarded by the version that was written: where somebody else changed the
// volume since, that is the PV controller at work.
func (p *provisioner) markVolumeBound(ctx context.Context, a *attempt) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": a.pv.UID, "resourceVersion": a.pv.ResourceVersion},
		"status":   map[string]any{"phase": v1.VolumeBound},
	})
	if err != nil {
		return fmt.Errorf("mark volume bound: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	p.pace.writesPhase(a.pv.Name)
	pv, err := p.client.CoreV1().PersistentVolumes().Patch(ctx, a.pv.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		if apierrors.IsNotFound(err) {
			p.pace.volumeDeleted(a.pv.Name) // It may have been seen deleted before.
		}
		marked := a.pv.DeepCopy()
		marked.Status.Phase = v1.VolumeBound // as far as we are concerned
		a.pv = marked
		return nil
	case err != nil:
		return fmt.Errorf("mark volume bound: %w", err)
	}
	a.pv = pv
	return nil
}

// completeClaim writes the claim's side of the binding. The uid in the patch
// pins it to this claim; spec.volumeName can be set only once, so a claim that
// was bound elsewhere in the meantime refuses the patch.
func (p *provisioner) completeClaim(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	claims := p.client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	if claim.Spec.VolumeName == "" || !metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted) {
		annotations := map[string]any{
			volume.AnnBindCompleted: "yes",
			// The PV controller's request to us, which it may not have got around
			// to. Others read it to tell who made a volume.
			volume.AnnStorageProvisioner:     names.Driver,
			volume.AnnBetaStorageProvisioner: names.Driver,
		}
		if claim.Spec.VolumeName == "" {
			annotations[volume.AnnBoundByController] = "yes"
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": claim.UID, "annotations": annotations},
			"spec":     map[string]any{"volumeName": pv.Name},
		})
		if err != nil {
			return 0, fmt.Errorf("bind claim: %w", err)
		}
		claim, err = claims.Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{})
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
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": claim.UID, "resourceVersion": claim.ResourceVersion},
		"status": map[string]any{
			"phase":       v1.ClaimBound,
			"accessModes": pv.Spec.AccessModes,
			"capacity":    pv.Spec.Capacity,
		},
	})
	if err != nil {
		return 0, fmt.Errorf("set claim's status: %w", err)
	}
	_, err = claims.Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsConflict(err):
		return lookAgain, nil // most likely the PV controller has just set it
	case err != nil && !apierrors.IsNotFound(err):
		return 0, fmt.Errorf("set claim's status: %w", err)
	}
	return 0, nil
}
