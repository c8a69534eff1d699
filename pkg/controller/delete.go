package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/workloop"
	"github.com/carve-csi/carve/pkg/fleet"
)

// deleteWorkers is how many released volumes are worked on at once, beside those that wait
// for a node; lvmd batches what arrives together.
const deleteWorkers = 128

const (
	// deleteRetryMax bounds the pauses between attempts at one volume. What is waited
	// for is mostly a kubelet that unmounts it, asking costs one message, and until then
	// nobody else gets the room.
	deleteRetryMax = 5 * time.Second
	// deleteQuiet is how many attempts at a volume in use no Event tells of, and
	// deleteTold after how many further ones one does again.
	deleteQuiet, deleteTold = 5, 6
)

// Values of the label "result" of carve_controller_deletes_total.
const (
	resultDeleted  = "deleted"
	resultNotYet   = "failed"
	resultNodeGone = "node_gone"
)

// deleter removes volumes whose PersistentVolume was released under the
// reclaim policy Delete, and keeps the finalizer that lets it.
type deleter struct {
	*core
	completeRelease bool
	volumeLoop      *workloop.Loop[string] // by name
	waiting         waiters

	mu sync.Mutex
	// claimGone holds the UIDs of deleted claims, by their volume's name, until
	// the volume is seen as released.
	claimGone map[string]types.UID
}

func newDeleter(c *core, completeRelease bool) *deleter {
	d := &deleter{core: c, completeRelease: completeRelease, claimGone: map[string]types.UID{}}
	d.volumeLoop = workloop.New(workloop.Options[string]{
		Name: "volumes", Parallel: cmp.Or(c.workers, deleteWorkers), RetryMin: retryMin, RetryMax: deleteRetryMax,
		Work: func(ctx context.Context, name string) (time.Duration, error) { return 0, d.sync(ctx, name) },
		Tenant: func(name string) string {
			if pv, err := d.volumeLister.Get(name); err == nil && pv.Spec.ClaimRef != nil {
				return pv.Spec.ClaimRef.Namespace
			}
			return ""
		},
		Failed: func(_ context.Context, name string, err error) {
			d.log.Info("volume is not deleted yet", "volume", name, "error", err)
		},
	})
	return d
}

// run works until ctx is done. The caches must have synced.
func (d *deleter) run(ctx context.Context) error {
	enqueue := func(obj any) {
		if pv, ok := obj.(*v1.PersistentVolume); ok && isOurs(pv) {
			d.volumeLoop.Add(pv.Name)
		}
	}
	volumes, err := d.volumes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, obj any) { enqueue(obj) },
		DeleteFunc: func(obj any) {
			if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				d.volumeLoop.Add(name)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch volumes: %w", err)
	}
	defer func() { _ = d.volumes.RemoveEventHandler(volumes) }()
	claims, err := d.claims.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: d.claimDeleted})
	if err != nil {
		return fmt.Errorf("watch claims: %w", err)
	}
	defer func() { _ = d.claims.RemoveEventHandler(claims) }()
	stop, err := d.watchGone(d.nodeChanged)
	if err != nil {
		return err
	}
	defer stop()
	d.volumeLoop.Run(ctx)
	return nil
}

// nodeChanged looks again at the volumes that wait for the node: it connected, or
// is gone.
func (d *deleter) nodeChanged(node string) {
	for _, name := range d.waiting.take(node) {
		d.volumeLoop.Add(name)
	}
}

func (d *deleter) sync(ctx context.Context, name string) error {
	pv, err := d.volumeLister.Get(name)
	if err != nil || !isOurs(pv) {
		d.forget(name)
		return nil //nolint:nilerr // the lister's only error is that it is gone
	}
	if err := d.keepFinalizer(ctx, pv); err != nil {
		return err
	}
	if pv, err = d.markReleased(ctx, pv); err != nil {
		return err
	}
	if !shouldDelete(pv) {
		return nil
	}
	if err := d.deleteVolume(ctx, pv); err != nil {
		d.metrics.deletes.WithLabelValues(resultNotYet).Inc()
		return err
	}
	return d.deletePersistentVolume(ctx, pv)
}

// forget drops what is remembered of a volume that is gone.
func (d *deleter) forget(name string) {
	d.waiting.forget(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.claimGone, name)
}

// claimDeleted notes the end of a claim. A deletion is final: no other claim
// will ever have that UID.
func (d *deleter) claimDeleted(obj any) {
	claim := deletedClaim(obj)
	if claim == nil || !d.completeRelease {
		return
	}
	pv, err := d.volumeLister.Get(claim.Spec.VolumeName)
	if err != nil || !isOurs(pv) || !claimedBy(pv, claim) {
		return
	}
	d.mu.Lock()
	d.claimGone[pv.Name] = claim.UID
	d.mu.Unlock()
	d.volumeLoop.Add(pv.Name)
}

// markReleased sets the phase of a volume whose claim is gone, as the PV
// controller would do a little, or in a burst of deletions much, later. It
// returns the volume as it then is.
func (d *deleter) markReleased(ctx context.Context, pv *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	d.mu.Lock()
	uid, gone := d.claimGone[pv.Name]
	delete(d.claimGone, pv.Name)
	d.mu.Unlock()
	if !gone || isReleased(pv) || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != uid {
		return pv, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pv.UID},
		"status":   map[string]any{"phase": v1.VolumeReleased},
	})
	if err != nil {
		return nil, fmt.Errorf("mark volume released: %w", err)
	}
	callCtx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	released, err := d.client.CoreV1().PersistentVolumes().Patch(callCtx, pv.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return pv, nil
	case err != nil:
		d.mu.Lock()
		d.claimGone[pv.Name] = uid
		d.mu.Unlock()
		return nil, fmt.Errorf("mark volume released: %w", err)
	}
	return released, nil
}

// shouldDelete is the upstream provisioner's rule.
func shouldDelete(pv *v1.PersistentVolume) bool {
	if pv.DeletionTimestamp != nil && !slices.Contains(pv.Finalizers, finalizer) {
		return false // somebody, probably we, did it already
	}
	return pv.Status.Phase == v1.VolumeReleased && pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete
}

// keepFinalizer adds the finalizer to bound volumes whose policy is Delete, and
// takes it from those whose policy was changed.
func (d *deleter) keepFinalizer(ctx context.Context, pv *v1.PersistentVolume) error {
	has := slices.Contains(pv.Finalizers, finalizer)
	switch {
	case pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete && has:
		return d.patchFinalizer(ctx, pv, "$deleteFromPrimitiveList/finalizers")
	case pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete && !has &&
		pv.DeletionTimestamp == nil && pv.Status.Phase == v1.VolumeBound:
		return d.patchFinalizer(ctx, pv, "finalizers")
	}
	return nil
}

// patchFinalizer adds ("finalizers") or removes ("$deleteFromPrimitiveList/…")
// ours by the strategic merge of that list, which needs no version and touches
// nobody else's finalizer.
func (d *deleter) patchFinalizer(ctx context.Context, pv *v1.PersistentVolume, directive string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pv.UID, directive: []string{finalizer}}})
	if err != nil {
		return fmt.Errorf("change finalizer: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	_, err = d.client.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("change finalizer: %w", err)
	}
	return nil // a conflict is another volume of that name
}

// deleteVolume removes the volume from its node. Where the node is lost there
// is nothing left to remove, and what should come back with it is found by its
// owner tags.
func (d *deleter) deleteVolume(ctx context.Context, pv *v1.PersistentVolume) error {
	node, ok := nodeOf(pv)
	if !ok {
		err := fmt.Errorf("PersistentVolume %s: spec.nodeAffinity does not name one node by %s", pv.Name, names.TopologyNode)
		d.recorder.Event(pv, v1.EventTypeWarning, reasonDeleteFailed, err.Error())
		return err
	}
	callCtx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	began := d.now()
	var err error
	d.volumeLoop.Outside(func() { err = d.fleet.DeleteVolumeByID(callCtx, node, pv.Spec.CSI.VolumeHandle) })
	switch {
	case err == nil:
		d.metrics.deletes.WithLabelValues(resultDeleted).Inc()
		d.log.Info("volume deleted", "volume", pv.Name, "volume_id", pv.Spec.CSI.VolumeHandle, "node", node, "took", d.now().Sub(began))
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case fleet.IsNotConnected(err):
		d.waiting.wait(node, pv.Name)
		if view, ok := d.fleet.View(node); ok && view.Connected {
			d.nodeChanged(node) // it connected in between
		}
		lost, lostErr := d.nodeLost(ctx, node)
		if lostErr != nil {
			return lostErr
		}
		if lost {
			d.metrics.deletes.WithLabelValues(resultNodeGone).Inc()
			d.recorder.Eventf(pv, v1.EventTypeNormal, reasonNodeGone, "node %s is lost; the volume on it is given up", node)
			d.log.Info("volume given up with its node", "volume", pv.Name, "node", node)
			return nil
		}
	}
	inUse := fleet.Reason(err) == names.ReasonVolumeInUse
	if !worthTelling(d.volumeLoop.Failures(pv.Name), inUse) {
		return err
	}
	message := refusal(node, err)
	if inUse {
		message += "; it is deleted once no Pod there uses it any more"
	}
	d.recorder.Event(pv, v1.EventTypeWarning, reasonDeleteFailed, message+"; trying on")
	return err
}

// worthTelling says whether an Event is to tell of a failed attempt, after so many
// before it. One at a volume in use is none at first, for the kubelet is unmounting
// it; of what lasts, only some are.
func worthTelling(failures int, inUse bool) bool {
	if inUse && failures < deleteQuiet {
		return false
	}
	return failures <= deleteQuiet || (failures-deleteQuiet)%deleteTold == 0
}

func (d *deleter) deletePersistentVolume(ctx context.Context, pv *v1.PersistentVolume) error {
	callCtx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	err := d.client.CoreV1().PersistentVolumes().Delete(callCtx, pv.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &pv.UID}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete PersistentVolume: %w", err)
	}
	return d.patchFinalizer(ctx, pv, "$deleteFromPrimitiveList/finalizers")
}
