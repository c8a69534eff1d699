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
// Why wait at all: where the PV controller is quick enough by itself, nothing
// is interfered with; and it calls a claim Lost that says it is bound to a
// volume which the controller has not taken in yet. For the same reason nothing
// is bound while it is behind (see backlog). Should a claim be called Lost
// nevertheless, it is put right at once, and not only at the PV controller's
// next pass over everything.
const (
	// completeAfter is how long the PersistentVolume must have existed.
	completeAfter = 100 * time.Millisecond
	// lookAgain is the pause while somebody else is expected to finish.
	lookAgain = 200 * time.Millisecond
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
	if a.pv != nil && a.pv.Status.Phase != v1.VolumeBound {
		if err := p.markVolumeBound(ctx, a); err != nil {
			return 0, err
		}
	}
	written := a.pvAt
	if written.IsZero() { // by an earlier life of the controller
		written = pv.CreationTimestamp.Time
	}
	if left := written.Add(completeAfter).Sub(p.now()); left > 0 {
		return left, nil
	}
	if p.backlog.behind() {
		return lookAgain, nil
	}
	return p.completeClaim(ctx, claim, pv)
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
	pv, err := p.client.CoreV1().PersistentVolumes().Patch(ctx, a.pv.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
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
		annotations := map[string]any{volume.AnnBindCompleted: "yes"}
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
