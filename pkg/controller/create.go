package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/fleet"
)

// provision makes the volume on a connected node and the PersistentVolume for
// it. The doubt about the node lasts from before the create is sent until a
// PersistentVolume speaks for the volume, or the node said no.
func (p *provisioner) provision(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, r request, node string) (time.Duration, error) {
	if view, ok := p.fleet.View(node); ok && r.mode == lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM {
		if on, ok := view.Class(r.deviceClass); ok {
			if err := r.fileSystem.suits(class, on); err != nil {
				return p.reject(ctx, a, claim, err)
			}
		}
	}
	if a.announced != node {
		a.announced = node
		p.recorder.Eventf(claim, v1.EventTypeNormal, reasonProvisioning,
			"External provisioner is provisioning volume for claim %q", claim.Namespace+"/"+claim.Name)
	}
	timeout := createTimeout
	if r.from != nil {
		timeout = copyTimeout
		if err := p.protectSource(ctx, a, r.from); err != nil {
			return 0, err
		}
	}
	_, doubted := a.doubts[node]
	a.doubts[node], a.inherited = struct{}{}, ""
	began := p.now()
	createCtx, cancel := context.WithTimeout(ctx, timeout)
	var vol *lvmdv1.Volume
	var err error
	p.claimLoop.Outside(func() { vol, err = p.fleet.CreateVolume(createCtx, node, r.create(claim, p.clusterID)) })
	cancel()
	if fleet.IsNotConnected(err) && !doubted {
		delete(a.doubts, node) // it was not sent
	}
	if err != nil {
		p.noteFailure(ctx, a, r, node, began, err)
		return p.createFailed(ctx, a, claim, r, node, err)
	}
	p.noteSuccess(node, vol.GetDeviceClass())
	a.internalErrors, a.unanswered = 0, 0
	p.metrics.createSeconds.Observe(p.now().Sub(began).Seconds())
	if vol.GetSizeBytes() < r.bytes || vol.GetName() != a.name {
		err := fmt.Errorf("node %s answered with volume %q of %d bytes, asked for %q of %d; do its agent and the controller have the same version?",
			node, vol.GetName(), vol.GetSizeBytes(), a.name, r.bytes)
		p.complain(a, claim, err.Error())
		return 0, err
	}
	pv, err := p.createPersistentVolume(ctx, newPersistentVolume(claim, class, node, vol, p.identity), claim)
	if err != nil {
		// Once is a hiccup, or our own end: whoever leads next finds the volume.
		if a.unsaved++; a.unsaved > 1 && ctx.Err() == nil {
			p.complain(a, claim, fmt.Sprintf("volume was made on node %s, its PersistentVolume could not be, trying on: %v", node, err))
		}
		return 0, err
	}
	a.unsaved = 0
	if holder, ok := nodeOf(pv); !ok || holder != node {
		// One for another node was there already. It counts; the volume that
		// was just made stays in doubt, and is removed once the claim is bound.
		a.pv, a.pvAt = pv, p.now()
		return p.finish(ctx, a, claim, pv)
	}
	delete(a.doubts, node)
	p.letSourceGo(a)
	a.pv, a.pvAt = pv, p.now()
	p.metrics.claims.WithLabelValues(resultProvisioned).Inc()
	p.recorder.Eventf(claim, v1.EventTypeNormal, reasonSucceeded, "Successfully provisioned volume %s", pv.Name)
	p.claimLog(claim, node).Info("volume provisioned", "volume_id", vol.GetId(), "bytes", vol.GetSizeBytes(), "took", p.now().Sub(began))
	return p.finish(ctx, a, claim, pv)
}

// createFailed decides what a node's refusal means.
func (p *provisioner) createFailed(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, r request, node string, cause error) (time.Duration, error) {
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if r.from != nil && fleet.MayHaveHappened(cause) && p.copying(ctx, a, claim, r) {
		return time.Millisecond, nil // it goes on, and is waited for again
	}
	p.metrics.claims.WithLabelValues(resultFailed).Inc()
	p.claimLog(claim, node).Info("node could not make the volume", "error", cause)
	if fleet.MayHaveHappened(cause) {
		// Once is a hiccup, of which nothing is left when the next attempt succeeds.
		if a.unanswered++; a.unanswered > 1 {
			p.complain(a, claim, unanswered(node, cause))
		}
		return 0, cause
	}
	a.unanswered = 0
	if fleet.IsNotConnected(cause) {
		return time.Millisecond, nil
	}
	delete(a.doubts, node)
	reason := fleet.Reason(cause)
	if reason == names.ReasonRequestDiffers {
		// Made for this claim under other parameters (the class was replaced),
		// and no PersistentVolume speaks for it.
		a.doubts[node] = struct{}{}
		if err := p.settle(ctx, a, claim, ""); err != nil {
			return 0, err
		}
		return time.Millisecond, nil
	}
	if r.from != nil {
		p.letSourceGo(a)
		p.complain(a, claim, refusal(node, cause)+sourceAdvice[reason]+"; asking it again")
		return 0, cause // the volume can be nowhere else
	}
	elsewhere := slices.Contains([]string{names.ReasonNoSpace, names.ReasonClassNotFound, names.ReasonDeviceMissing}, reason)
	if reason == names.ReasonCommandFailed {
		a.internalErrors++
		elsewhere = a.internalErrors >= internalErrorsToRelease
	}
	if !elsewhere {
		p.complain(a, claim, refusal(node, cause)+"; asking it again")
		return 0, cause
	}
	a.internalErrors = 0
	why := errors.New(refusal(node, cause))
	if fault, _ := nodesFault(cause); fault && claim.Annotations[volume.AnnSelectedNode] == node {
		a.leaving = &departure{node, why} // when the scheduler can see that the node is held back
		return time.Millisecond, nil
	}
	return 0, p.release(ctx, a, claim, node, why)
}

// unanswered says that a node did not get to say yes or no.
func unanswered(node string, cause error) string {
	if fleet.Reason(cause) != "" {
		return refusal(node, cause) + "; asking it again"
	}
	return fmt.Sprintf("the connection to node %s broke, or it took too long, while it made the volume; asking it again (%s)", node, fleet.Message(cause))
}

// createPersistentVolume writes pv, or returns the one that exists for the
// same claim.
func (p *provisioner) createPersistentVolume(ctx context.Context, pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolume, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	volumes := p.client.CoreV1().PersistentVolumes()
	created, err := volumes.Create(ctx, pv, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return created, err
	}
	existing, err := volumes.Get(ctx, pv.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the PersistentVolume that exists: %w", err)
	}
	if !belongsTo(existing, claim) {
		return nil, fmt.Errorf("PersistentVolume %s exists and does not belong to the claim", pv.Name)
	}
	node, _ := nodeOf(pv)
	if held, _ := nodeOf(existing); held == node && existing.Spec.CSI != nil && existing.Spec.CSI.VolumeHandle != pv.Spec.CSI.VolumeHandle {
		return nil, fmt.Errorf("PersistentVolume %s exists and names volume %s, while node %s has %s under that name",
			pv.Name, existing.Spec.CSI.VolumeHandle, node, pv.Spec.CSI.VolumeHandle)
	}
	return existing, nil
}

// settle removes what may have been made for the claim on nodes other than
// keep, so that no node but keep can hold its volume. It does nothing where a
// PersistentVolume exists, and fails while a node cannot be asked.
func (p *provisioner) settle(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, keep string) error {
	nodes := p.suspects(a, keep)
	if len(nodes) == 0 {
		return nil
	}
	if exists, err := p.persistentVolumeExists(ctx, a.name); err != nil {
		return err
	} else if exists {
		return errVolumeAppeared
	}
	for _, node := range nodes {
		if err := p.removeByName(ctx, node, a.name); err != nil {
			if claim != nil && ctx.Err() == nil {
				p.complain(a, claim, fmt.Sprintf("a volume may have been left on node %s, which cannot be asked: %s; %s",
					node, fleet.Message(err), doubtAdvice))
			}
			p.waiting.wait(node, a.uid)
			return fmt.Errorf("remove what may be on node %s: %w", node, err)
		}
		delete(a.doubts, node)
	}
	return nil
}

// removeStrays removes what may have been made for the claim on nodes other
// than the one that its PersistentVolume names.
func (p *provisioner) removeStrays(ctx context.Context, a *attempt, pv *v1.PersistentVolume) error {
	keep, ok := nodeOf(pv)
	if !ok {
		return nil
	}
	for _, node := range p.suspects(a, keep) {
		if err := p.removeByName(ctx, node, a.name); err != nil {
			p.waiting.wait(node, a.uid)
			return fmt.Errorf("remove what was left on node %s: %w", node, err)
		}
		delete(a.doubts, node)
	}
	return nil
}

// suspects are the nodes other than keep that may hold the claim's volume.
func (p *provisioner) suspects(a *attempt, keep string) []string {
	nodes := append(sortedKeys(a.doubts), p.fleet.Holders(a.name)...)
	slices.Sort(nodes)
	return slices.DeleteFunc(slices.Compact(nodes), func(n string) bool { return n == keep })
}

func (p *provisioner) persistentVolumeExists(ctx context.Context, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	_, err := p.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for PersistentVolume %s: %w", name, err)
	}
	return true, nil
}

// removeByName removes a volume from a node; one that is gone holds nothing. What
// should come back with it, the audit finds.
func (p *provisioner) removeByName(ctx context.Context, node, name string) error {
	deleteCtx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	var err error
	p.claimLoop.Outside(func() { err = p.fleet.DeleteVolumeByName(deleteCtx, node, name) })
	if !fleet.IsNotConnected(err) {
		return err
	}
	gone, goneErr := p.nodeGone(ctx, node)
	if goneErr != nil {
		return goneErr
	}
	if gone {
		p.fleet.Forget(node)
		return nil
	}
	return err
}

// release hands the claim back: late binding by removing the selected node, so
// that the scheduler chooses again; immediate binding by trying another node.
func (p *provisioner) release(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, node string, why error) error {
	p.metrics.claims.WithLabelValues(resultReleased).Inc()
	next := "; choosing another node"
	if claim.Annotations[volume.AnnSelectedNode] == node {
		next = "; the scheduler is asked for another node"
	}
	p.recorder.Event(claim, v1.EventTypeWarning, reasonFailed, why.Error()+next)
	a.announced, a.unreachableSince, a.misfitSince, a.leaving = "", time.Time{}, time.Time{}, nil
	if claim.Annotations[volume.AnnSelectedNode] != node {
		a.full[node] = p.now()
		p.mu.Lock()
		a.node = ""
		p.mu.Unlock()
		p.unreserve(a.uid)
		return why // tried again, on another node if there is one
	}
	if err := p.removeSelectedNode(ctx, a, claim, node); err != nil {
		return err
	}
	p.unreserve(a.uid)
	return nil
}

// removeSelectedNode removes the annotation if it still names the node. The
// tests in the patch make it exact: nothing else that happened to the claim
// since is in the way, and a newer selection is never lost.
func (p *provisioner) removeSelectedNode(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, node string) error {
	const path = "/metadata/annotations/volume.kubernetes.io~1selected-node"
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": claim.UID},
		{"op": "test", "path": path, "value": node},
		{"op": "remove", "path": path},
	})
	if err != nil {
		return fmt.Errorf("hand claim back: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	freed, err := p.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.JSONPatchType, patch, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsInvalid(err):
		return nil // the claim is gone, or chose again: its events follow
	case err != nil:
		return fmt.Errorf("hand claim back: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a.releasedAt, a.node = freed.ResourceVersion, ""
	return nil
}
