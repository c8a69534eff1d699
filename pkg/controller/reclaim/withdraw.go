package reclaim

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
)

// isUnbound reports whether a PersistentVolume is Available and being deleted, with our finalizer:
// its claim is gone and an administrator removed spec.claimRef, so that the PV controller will not
// mark it as released.
func isUnbound(pv *v1.PersistentVolume) bool {
	return pv.DeletionTimestamp != nil && slices.Contains(pv.Finalizers, cluster.Finalizer) &&
		pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete &&
		pv.Status.Phase == v1.VolumeAvailable && (pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == "")
}

// withdraw prevents claims from binding an unbound volume that is being deleted; the PV controller
// would still bind a claim that names it. It sets a claimRef with a UID that no claim has, provided
// that nothing else has changed. The PV controller then marks the volume as released, and it is
// deleted like any other. If a claim names the volume already, withdraw keeps it and records an
// Event.
func (d *Deleter) withdraw(ctx context.Context, pv *v1.PersistentVolume) error {
	claim := d.ClaimNaming(pv.Name)
	if claim == "" {
		var claims map[string]string
		var err error
		d.loop.Outside(func() { claims, err = d.ReadClaimsNaming(ctx, pv.Name) })
		if err != nil {
			return err
		}
		claim = claims[pv.Name]
	}
	if claim != "" {
		err := fmt.Errorf("claim %s names the volume: delete the claim, and the volume is deleted, too", claim)
		if worthReporting(d.loop.Failures(pv.Name), true) {
			d.Recorder.Event(pv, v1.EventTypeWarning, cluster.ReasonDeleteFailed, err.Error())
		}
		return err
	}
	_, err := cluster.Apply(ctx, d.Client.CoreV1().PersistentVolumes(), pv, cluster.Exact, func(pv *v1.PersistentVolume) {
		ref := &v1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: names.Namespace, Name: pv.Name}
		if pv.Spec.CSI != nil && pv.Spec.CSI.NodeStageSecretRef != nil {
			// The policy for volumes requires the Secret's namespace.
			ref.Namespace = pv.Spec.CSI.NodeStageSecretRef.Namespace
		}
		if pv.Spec.ClaimRef != nil {
			ref.Namespace, ref.Name = pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name
		}
		ref.UID = pv.UID
		pv.Spec.ClaimRef = ref
	})
	if err != nil && !cluster.IsOutdated(err) {
		return fmt.Errorf("withdraw volume: %w", err)
	}
	return nil // after a conflict, its next event follows
}
