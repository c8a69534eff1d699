package reclaim

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/controller/workloop"
	"github.com/carve-csi/carve/pkg/fleet"
)

// deleteWorkers is how many released volumes are worked on at once, besides those that wait for a
// node. lvmd batches concurrent deletions.
const deleteWorkers = 128

const (
	// deleteRetryMax limits the pauses between attempts at one volume. They mostly wait for a
	// kubelet to unmount it. An attempt costs one message, and until it succeeds no other volume
	// gets the space.
	deleteRetryMax = 5 * time.Second
	// deleteQuiet is the number of attempts at a volume in use before the first Event, and
	// deleteRepeated the number of further ones before each next Event.
	deleteQuiet, deleteRepeated = 5, 6
	// releaseAfter is how long the PV controller may take to mark a volume as released after the
	// deletion of its claim. It mostly takes less, which saves us a write. In a burst of deletions
	// it lags by many seconds, and the Deleter marks the volume itself.
	releaseAfter = 150 * time.Millisecond
	retryMin     = 200 * time.Millisecond
	// keptRetry is when to recheck a volume that is not released at the API server. Mostly an event
	// comes first, but not when a claim goes that was never bound to it.
	keptRetry = time.Minute
	// awayRetry is when to recheck a volume whose node is away. Mostly the node's return or its loss
	// comes first. An Event is kept for an hour.
	awayRetry = 20 * time.Minute
)

// Values of the label "result" of carve_controller_deletes_total.
const (
	resultDeleted  = "deleted"
	resultNotYet   = "failed"
	resultNodeGone = "node_gone"
)

// Deleter removes volumes whose PersistentVolume was released under the reclaim policy Delete, and
// maintains the finalizer that it needs for that.
type Deleter struct {
	*cluster.Cluster
	Options
	loop    *workloop.Loop[string] // by PersistentVolume name
	waiting cluster.Waiters

	mu sync.Mutex
	// claimGone holds the deleted claims by their volume's name, until the volume is seen as
	// released.
	claimGone map[string]goneClaim
	// done holds the deleted PersistentVolumes until the cache shows that they are gone; it may
	// still show an older state.
	done map[string]types.UID
}

type goneClaim struct {
	uid types.UID
	at  time.Time
}

// Options configure a Deleter. Metrics is required.
type Options struct {
	// Parallel is how many volumes are worked on at once, besides those that wait for a node; zero
	// means 128.
	Parallel int
	Metrics  *Metrics
}

// NewDeleter returns a Deleter; Run runs it.
func NewDeleter(c *cluster.Cluster, o Options) *Deleter {
	d := &Deleter{Cluster: c, Options: o, claimGone: map[string]goneClaim{}, done: map[string]types.UID{}}
	d.loop = workloop.New(workloop.Options[string]{
		Name: "volumes", Parallel: cmp.Or(o.Parallel, deleteWorkers), RetryMin: retryMin, RetryMax: deleteRetryMax,
		Work: d.sync,
		Tenant: func(name string) string {
			if pv, err := d.VolumeLister.Get(name); err == nil && pv.Spec.ClaimRef != nil {
				return pv.Spec.ClaimRef.Namespace
			}
			return ""
		},
		Failed: func(_ context.Context, name string, err error) {
			d.Log.Info("volume is not deleted yet", "volume", name, "error", err)
		},
	})
	return d
}

// Run works until ctx is done. The caches must have synced.
func (d *Deleter) Run(ctx context.Context) error {
	changed := func(pv *v1.PersistentVolume) {
		if objects.IsOurs(pv) {
			d.loop.Add(pv.Name)
		}
	}
	stop, err := cluster.Watch(
		cluster.OnChange(d.Volumes, changed, func(pv *v1.PersistentVolume) { d.loop.Add(pv.Name) }),
		cluster.OnChange(d.Claims, func(*v1.PersistentVolumeClaim) {}, d.claimDeleted),
		d.OnGone(d.NodeChanged),
	)
	if err != nil {
		return err
	}
	defer stop()
	d.loop.Run(ctx)
	return nil
}

// NodeChanged rechecks the volumes that wait for a node, which connected or is gone.
func (d *Deleter) NodeChanged(node string) {
	for _, name := range d.waiting.Take(node) {
		d.loop.Add(name)
	}
}

// sync takes a volume one step further. It returns when to recheck it without an event; 0 means
// never.
func (d *Deleter) sync(ctx context.Context, name string) (again time.Duration, err error) {
	pv, err := d.VolumeLister.Get(name)
	if err != nil || !objects.IsOurs(pv) {
		d.forget(name)
		return 0, nil //nolint:nilerr // the lister's only error is that it is gone
	}
	if d.isDone(pv) {
		return 0, nil
	}
	if err := d.keepFinalizer(ctx, pv); err != nil {
		return 0, err
	}
	if pv, again, err = d.markReleased(ctx, pv); again > 0 || err != nil {
		return again, err
	}
	if isUnbound(pv) {
		return 0, d.withdraw(ctx, pv) // the volume's next event shows it as released
	}
	if !shouldDelete(pv) {
		return 0, nil
	}
	pv, err = d.confirm(ctx, pv)
	if err == nil && pv == nil {
		return keptRetry, nil
	}
	if err == nil {
		err = d.deleteVolume(ctx, pv)
	}
	if err != nil {
		d.Metrics.deletes.WithLabelValues(resultNotYet).Inc()
		if fleet.IsNotConnected(err) {
			return d.awaitNode(pv, err)
		}
		return 0, err
	}
	return 0, d.deletePersistentVolume(ctx, pv)
}

// awaitNode returns when to recheck a volume that waits for its node, if NodeChanged is not called
// earlier, or err if the node seems to be connected: it just came, or just went. A node whose Node
// object is gone becomes lost without an event.
func (d *Deleter) awaitNode(pv *v1.PersistentVolume, err error) (again time.Duration, _ error) {
	node, _ := objects.NodeOf(pv)
	if view, ok := d.Fleet.View(node); ok && view.Connected {
		return 0, err
	}
	if _, err := d.NodeLister.Get(node); err != nil {
		return d.Losses.Grace, nil //nolint:nilerr // the lister's only error is that it is gone
	}
	return awayRetry, nil
}

func (d *Deleter) forget(name string) {
	d.waiting.Forget(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.claimGone, name)
	delete(d.done, name)
}

func (d *Deleter) isDone(pv *v1.PersistentVolume) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	uid, done := d.done[pv.Name]
	return done && uid == pv.UID
}

// claimDeleted records the deletion of a claim, bound or not. It is final: no other claim will ever
// have that UID.
func (d *Deleter) claimDeleted(claim *v1.PersistentVolumeClaim) {
	for _, pv := range d.VolumesFor(claim) {
		if !objects.IsOurs(pv) {
			continue
		}
		d.mu.Lock()
		d.claimGone[pv.Name] = goneClaim{claim.UID, d.Now()}
		d.mu.Unlock()
		d.loop.Add(pv.Name)
	}
}

// markReleased sets the phase of a volume whose claim is gone, if the PV controller has not done so
// in time. It returns the current volume, or the time that the PV controller has left.
func (d *Deleter) markReleased(ctx context.Context, pv *v1.PersistentVolume) (now *v1.PersistentVolume, again time.Duration, err error) {
	d.mu.Lock()
	claim, gone := d.claimGone[pv.Name]
	open := gone && !cluster.IsReleased(pv) && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == claim.uid
	left := claim.at.Add(releaseAfter).Sub(d.Now())
	if !open || left <= 0 {
		delete(d.claimGone, pv.Name)
	}
	d.mu.Unlock()
	switch {
	case !open:
		return pv, 0, nil
	case left > 0:
		return pv, left, nil
	}
	released, err := cluster.Apply(ctx, d.Client.CoreV1().PersistentVolumes(), pv, cluster.Exact, // it may have another claim
		func(pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumeReleased }, "status")
	if err == nil {
		return released, 0, nil
	}
	d.mu.Lock()
	d.claimGone[pv.Name] = claim
	d.mu.Unlock()
	if cluster.IsOutdated(err) {
		return pv, 0, nil // its next event brings it back
	}
	return nil, 0, fmt.Errorf("mark volume released: %w", err)
}

// shouldDelete is the upstream provisioner's rule, extended to a PersistentVolume that is being
// deleted in the phase Failed: the PV controller sets it if it knows no provisioner, and nothing
// else would end the volume.
func shouldDelete(pv *v1.PersistentVolume) bool {
	deleted := pv.DeletionTimestamp != nil
	if deleted && !slices.Contains(pv.Finalizers, cluster.Finalizer) {
		return false // already done
	}
	return pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete &&
		(pv.Status.Phase == v1.VolumeReleased || deleted && pv.Status.Phase == v1.VolumeFailed)
}

// confirm reads a volume from the API server before its deletion, and returns nil if it is not
// released there.
func (d *Deleter) confirm(ctx context.Context, pv *v1.PersistentVolume) (now *v1.PersistentVolume, err error) {
	var claim *v1.PersistentVolumeClaim
	d.loop.Outside(func() { now, claim, err = d.ReadVolume(ctx, pv) })
	if err != nil || now == nil || !isReleased(now, claim) {
		return nil, err
	}
	return now, nil
}

// isReleased reports whether a volume should be deleted and belongs to no claim. claim is the one
// with the UID in claimRef, or nil. The phase alone is not enough: it stays Released for a while
// after an administrator, or a volume populator, gives the volume to another claim.
func isReleased(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	ref := pv.Spec.ClaimRef
	if !shouldDelete(pv) || ref == nil || ref.UID == "" {
		return false // a claimRef without UID reserves the volume for a future claim
	}
	// A claim that got another volume than the one made for it never takes that.
	return claim == nil || pv.Name == spec.VolumeName(claim) && claim.Spec.VolumeName != "" && claim.Spec.VolumeName != pv.Name
}

// keepFinalizer adds the finalizer to bound volumes with the policy Delete, and removes it from
// those whose policy changed.
func (d *Deleter) keepFinalizer(ctx context.Context, pv *v1.PersistentVolume) error {
	has, wanted := slices.Contains(pv.Finalizers, cluster.Finalizer), pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete
	if has && !wanted || wanted && !has && pv.DeletionTimestamp == nil && pv.Status.Phase == v1.VolumeBound {
		return d.setFinalizer(ctx, pv, wanted)
	}
	return nil
}

// setFinalizer tolerates changes of other finalizers.
func (d *Deleter) setFinalizer(ctx context.Context, pv *v1.PersistentVolume, wanted bool) error {
	_, err := cluster.Apply(ctx, d.Client.CoreV1().PersistentVolumes(), pv, cluster.SameObject, cluster.WithFinalizer[*v1.PersistentVolume](cluster.Finalizer, wanted))
	if err != nil && !cluster.IsOutdated(err) {
		return fmt.Errorf("change finalizer: %w", err)
	}
	return nil // a conflict means another volume of that name
}

// deleteVolume removes the volume from its node. It gives up the volume of a lost node; if the node
// returns, the volume is found by its owner tags.
func (d *Deleter) deleteVolume(ctx context.Context, pv *v1.PersistentVolume) error {
	node, ok := objects.NodeOf(pv)
	if !ok {
		err := fmt.Errorf("PersistentVolume %s: spec.nodeAffinity does not name one node by %s", pv.Name, names.TopologyNode)
		d.Recorder.Event(pv, v1.EventTypeWarning, cluster.ReasonDeleteFailed, err.Error())
		return err
	}
	callCtx, cancel := context.WithTimeout(ctx, cluster.DeleteTimeout)
	defer cancel()
	began := d.Now()
	var err error
	d.loop.Outside(func() { err = d.Fleet.DeleteVolumeByID(callCtx, node, pv.Spec.CSI.VolumeHandle) })
	switch {
	case err == nil:
		d.Metrics.deletes.WithLabelValues(resultDeleted).Inc()
		d.Log.Info("volume deleted", "volume", pv.Name, "volume_id", pv.Spec.CSI.VolumeHandle, "node", node, "duration", d.Now().Sub(began))
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case fleet.IsNotConnected(err):
		d.waiting.Wait(node, pv.Name)
		lost, lostErr := d.NodeLost(ctx, node)
		if lostErr != nil {
			return lostErr
		}
		if lost {
			d.Metrics.deletes.WithLabelValues(resultNodeGone).Inc()
			d.Recorder.Eventf(pv, v1.EventTypeNormal, cluster.ReasonNodeGone, "node %s is lost; the volume on it is given up", node)
			d.Log.Info("volume given up with its node", "volume", pv.Name, "node", node)
			return nil
		}
	}
	inUse := fleet.Reason(err) == names.ReasonVolumeInUse
	if !worthReporting(d.loop.Failures(pv.Name), inUse) {
		return err
	}
	message := cluster.Refusal(node, err)
	if inUse {
		message += "; it is deleted when nothing on the node uses it any more"
	}
	d.Recorder.Event(pv, v1.EventTypeWarning, cluster.ReasonDeleteFailed, message+"; trying on")
	return err
}

// worthReporting reports whether a failed attempt, after the given number of failures, deserves an
// Event. The first ones at a volume in use do not, because the kubelet is unmounting it; of lasting
// failures, only some do.
func worthReporting(failures int, inUse bool) bool {
	if inUse && failures < deleteQuiet {
		return false
	}
	return failures <= deleteQuiet || (failures-deleteQuiet)%deleteRepeated == 0
}

func (d *Deleter) deletePersistentVolume(ctx context.Context, pv *v1.PersistentVolume) error {
	callCtx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
	defer cancel()
	err := d.Client.CoreV1().PersistentVolumes().Delete(callCtx, pv.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &pv.UID}})
	if cluster.IsOutdated(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete PersistentVolume: %w", err)
	}
	if err := d.setFinalizer(ctx, pv, false); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.done[pv.Name] = pv.UID
	return nil
}

// Waiting returns the nodes that volumes wait for.
func (d *Deleter) Waiting() []string { return d.waiting.Nodes() }
