package provision

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/quantity"
)

// createTimeout bounds lvcreate and mkfs behind a burst of creates. It is long because on a
// timeout the node undoes its work. The uplink's keepalive detects lost nodes, and lvmd bounds
// each command.
const createTimeout = 5 * time.Minute

// Age of a create that is reported by an Event.
const slowCreate = 5 * time.Second

// create makes the volume on a connected node, and its PersistentVolume. The node is in flight
// from before the request until a PersistentVolume names the volume or the node rejects.
func (p *Provisioner) create(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, r spec.Request, node string) (time.Duration, error) {
	timeout := cmp.Or(p.CreateTimeout, createTimeout)
	if r.From != nil {
		timeout = copyTimeout
		if err := p.protectSource(ctx, a, r.From); err != nil {
			return 0, err
		}
	}
	before := a.inFlight.add(node)
	began := p.Now()
	createCtx, cancel := context.WithTimeout(ctx, timeout)
	var vol *lvmdv1.Volume
	var err error
	ask := r.CreateVolume(claim, p.ID)
	ask.Provisional = true
	answered := p.reportSlow(a, claim, node)
	p.loop.Outside(func() { vol, err = p.Fleet.CreateVolume(createCtx, node, ask) })
	answered()
	cancel()
	if fleet.NotSent(err) && !before {
		a.inFlight.end(node)
	}
	if err != nil {
		s := answer{node: node, cause: err}
		if ctx.Err() == nil && s.isUnknown() && p.goesOn(ctx, a, claim, r, node) {
			return time.Millisecond, nil // the next call waits for the same creation
		}
		// A copy can fail for its source: do not blame the node.
		if fault, _ := cluster.NodeFault(err); fault && ctx.Err() == nil && r.From == nil && a.failures.blame(node) {
			p.CountFailure(p.Available, node, r.DeviceClass, began, err)
		}
		return p.createFailed(ctx, a, claim, class, r, s)
	}
	if err := p.IDs.Accept(node, ask, vol); err != nil {
		if a.failures.blame(node) {
			p.CountFailure(p.Available, node, r.DeviceClass, began, err)
		}
		return p.createFailed(ctx, a, claim, class, r, answer{node: node, cause: err, wrong: true})
	}
	a.failures.internal, a.failures.unanswered = 0, 0
	p.CountSuccess(p.Available, node, vol.GetDeviceClass())
	p.Available.Accepted(node, class.Name)
	if err := p.matchLimits(ctx, node, vol, r.IOLimits); err != nil {
		p.warn(a, claim, fmt.Sprintf("the volume was made, its I/O limits could not be set, trying on: %s", cluster.Refusal(node, err)))
		return 0, err
	}
	pv, err := p.volumes.create(ctx, NewPersistentVolume(claim, class, node, vol, p.Identity), claim)
	if err != nil {
		// Report from the second failure on: the first may be transient, or our shutdown,
		// after which the next leader finds the volume.
		if a.failures.unsaved++; a.failures.unsaved > 1 && ctx.Err() == nil {
			p.warn(a, claim, fmt.Sprintf("volume was made on node %s, its PersistentVolume could not be, trying on: %v", node, err))
		}
		return 0, err
	}
	a.failures.unsaved = 0
	if holder, ok := objects.NodeOf(pv); !ok || holder != node {
		// A PersistentVolume for another node exists and wins. The new volume stays in flight
		// and is removed once the claim is bound.
		a.written.pv, a.written.at = pv, p.Now()
		return 0, p.finish(ctx, a, claim, pv)
	}
	a.inFlight.end(node)
	p.unprotectSource(a)
	a.written.pv, a.written.at = pv, p.Now()
	p.Metrics.claims.WithLabelValues(resultProvisioned).Inc()
	if a.reported {
		p.Recorder.Eventf(claim, v1.EventTypeNormal, cluster.ReasonSucceeded, "Successfully provisioned volume %s", pv.Name)
	}
	p.Log.With("claim", claim.Namespace+"/"+claim.Name, "volume", a.name, "node", node).Info("volume provisioned", "volume_id", vol.GetId(), "bytes", vol.GetSizeBytes(), "duration", p.Now().Sub(began))
	return 0, p.finish(ctx, a, claim, pv)
}

// reportSlow sends the Event Provisioning if the create takes long; call answered when it
// ends. Quick successes get no Event, which would be one more write for every volume.
func (p *Provisioner) reportSlow(a *attempt, claim *v1.PersistentVolumeClaim, node string) (answered func()) {
	if a.reportedNode == node {
		return func() {}
	}
	timer := time.AfterFunc(cmp.Or(p.SlowCreate, slowCreate), func() {
		p.Recorder.Eventf(claim, v1.EventTypeNormal, cluster.ReasonProvisioning,
			"External provisioner is provisioning volume for claim %q", claim.Namespace+"/"+claim.Name)
	})
	return func() {
		if !timer.Stop() {
			a.reportedNode, a.reported = node, true
		}
	}
}

// goesOn reports by an Event that a node still copies or clears the volume, or returns false. A
// clearing must have progressed since the last call.
func (p *Provisioner) goesOn(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, r spec.Request, node string) bool {
	ctx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
	defer cancel()
	vol, err := p.Fleet.GetVolumeByName(ctx, node, a.name)
	if err != nil || vol.GetState() != lvmdv1.VolumeState_VOLUME_STATE_CREATING {
		return false
	}
	done, size := vol.GetCopiedBytes(), quantity.Bytes(vol.GetSizeBytes())
	switch {
	case r.From != nil && vol.GetSource() != nil:
		p.Recorder.Eventf(claim, v1.EventTypeNormal, cluster.ReasonCopying, "%s of %s of %s are copied on node %s", quantity.Bytes(done), size, r.From.What, node)
		return true
	case r.From == nil && done != a.cleared:
		a.cleared = done
		p.Recorder.Eventf(claim, v1.EventTypeNormal, cluster.ReasonProvisioning, "%s of %s are cleared on node %s, as another volume's data may be there", quantity.Bytes(done), size, node)
		return true
	}
	return false
}

func (p *Provisioner) createFailed(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, r spec.Request, s answer) (time.Duration, error) {
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	p.Metrics.claims.WithLabelValues(resultFailed).Inc()
	p.Log.With("claim", claim.Namespace+"/"+claim.Name, "volume", a.name, "node", s.node).Info("node could not make the volume", "error", s.cause)
	s.class, s.cloned, s.selected = class.Name, r.From != nil, claim.Annotations[volume.AnnSelectedNode] == s.node
	s.mayHold, s.unanswered, s.internal = a.inFlight.has(s.node), a.failures.unanswered, a.failures.internal
	s.undone = s.mustUndo() && p.undo(ctx, a, s.node)
	s.noneLeft = s.cannotFormat() && p.placer.noneLeft(a.failures.refused, s.node, class, r)

	act := decideAnswer(s)
	a.failures.unanswered, a.failures.internal = act.unanswered, act.internal
	if act.gone {
		a.inFlight.end(s.node)
	}
	if act.releaseSource {
		p.unprotectSource(a)
	}
	if act.says != "" {
		p.warn(a, claim, act.says)
	}
	if act.refused {
		a.failures.refuse(s.node)
	}
	if act.refused && act.do != retry {
		p.Available.Refused(s.node, class.Name)
	}
	switch act.do {
	case retry:
		return 0, act.why
	case reschedule:
		return 0, p.reschedule(ctx, a, claim, s.node, act.why)
	case clearSuspects:
		if err := p.removeElsewhere(ctx, a, claim, ""); err != nil {
			return 0, err
		}
	case rescheduleLowered:
		a.failures.leaving = &departure{s.node, act.why} // when the scheduler can see that the node is held back
	default: // wait
	}
	return time.Millisecond, nil
}

// undo reports whether the node removed what it may have made, so that another one can be
// asked.
func (p *Provisioner) undo(ctx context.Context, a *attempt, node string) bool {
	err := p.removeByName(ctx, node, a.name)
	if err != nil {
		p.Log.With("volume", a.name, "node", node).Info("what the node made cannot be taken back", "error", err)
	}
	return err == nil
}

func unanswered(node string, cause error) string {
	if fleet.Reason(cause) != "" {
		return cluster.Refusal(node, cause) + "; asking it again"
	}
	return fmt.Sprintf("the connection to node %s broke, or it took too long, while it made the volume; asking it again (%s)", node, cluster.Words(cause))
}

func (v persistentVolumes) create(ctx context.Context, pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolume, error) {
	ctx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
	defer cancel()
	volumes := v.Client.CoreV1().PersistentVolumes()
	created, err := volumes.Create(ctx, pv, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return created, err
	}
	existing, err := volumes.Get(ctx, pv.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the PersistentVolume that exists: %w", err)
	}
	if !objects.BelongsTo(existing, claim) {
		return nil, fmt.Errorf("PersistentVolume %s exists and does not belong to the claim", pv.Name)
	}
	node, _ := objects.NodeOf(pv)
	if held, _ := objects.NodeOf(existing); held == node && existing.Spec.CSI != nil && existing.Spec.CSI.VolumeHandle != pv.Spec.CSI.VolumeHandle {
		return nil, fmt.Errorf("PersistentVolume %s exists and names volume %s, while node %s has %s under that name",
			pv.Name, existing.Spec.CSI.VolumeHandle, node, pv.Spec.CSI.VolumeHandle)
	}
	return existing, nil
}

// removeElsewhere removes the claim's volume from all suspects but keep. It fails if a
// PersistentVolume exists, or while a suspect cannot be asked.
func (p *Provisioner) removeElsewhere(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, keep string) error {
	nodes := p.suspects(a, keep)
	if len(nodes) == 0 {
		return nil
	}
	if exists, err := p.volumes.exists(ctx, a.name); err != nil {
		return err
	} else if exists {
		return errVolumeAppeared
	}
	for _, node := range nodes {
		if err := p.removeByName(ctx, node, a.name); err != nil {
			if claim != nil && ctx.Err() == nil {
				p.warn(a, claim, fmt.Sprintf("a volume may have been left on node %s, which cannot be asked: %s; %s",
					node, cluster.Words(err), cluster.OutcomeUnknownAdvice))
			}
			p.waiting.Wait(node, a.uid)
			return fmt.Errorf("remove what may be on node %s: %w", node, err)
		}
		a.inFlight.end(node)
	}
	return nil
}

func (p *Provisioner) removeStrays(ctx context.Context, a *attempt, pv *v1.PersistentVolume) error {
	keep, ok := objects.NodeOf(pv)
	if !ok {
		return nil
	}
	for _, node := range p.suspects(a, keep) {
		if err := p.removeByName(ctx, node, a.name); err != nil {
			p.waiting.Wait(node, a.uid)
			return fmt.Errorf("remove what was left on node %s: %w", node, err)
		}
		a.inFlight.end(node)
	}
	return nil
}

func (p *Provisioner) suspects(a *attempt, keep string) []string {
	nodes := append(slices.Sorted(maps.Keys(a.inFlight.nodes)), p.Fleet.Holders(a.name)...)
	slices.Sort(nodes)
	return slices.DeleteFunc(slices.Compact(nodes), func(n string) bool { return n == keep })
}

func (v persistentVolumes) exists(ctx context.Context, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
	defer cancel()
	_, err := v.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for PersistentVolume %s: %w", name, err)
	}
	return true, nil
}

// removeByName succeeds for a node that is gone: if it returns, the audit finds the volume.
func (p *Provisioner) removeByName(ctx context.Context, node, name string) error {
	deleteCtx, cancel := context.WithTimeout(ctx, cluster.DeleteTimeout)
	defer cancel()
	var err error
	p.loop.Outside(func() { err = p.Fleet.DeleteVolumeByName(deleteCtx, node, name) })
	if !fleet.IsNotConnected(err) {
		return err
	}
	gone, goneErr := p.NodeGone(ctx, node)
	if goneErr != nil {
		return goneErr
	}
	if gone {
		p.Fleet.Forget(node)
		return nil
	}
	return err
}

// reschedule removes the selected node, so that the scheduler chooses again; for immediate
// binding it tries another node. A claim whose Pod is on the node already must stay.
func (p *Provisioner) reschedule(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, node string, why error) error {
	if p.PlacedOn(claim) == node {
		a.unreachableSince, a.shortageSince, a.failures.leaving = time.Time{}, time.Time{}, nil
		p.warn(a, claim, why.Error()+"; a Pod that uses the claim is on that node already, so it is asked again: delete the Pod to have it elsewhere")
		return why
	}
	p.Metrics.claims.WithLabelValues(resultRescheduled).Inc()
	next := "; choosing another node"
	if claim.Annotations[volume.AnnSelectedNode] == node {
		next = "; the scheduler is asked for another node"
	}
	p.Recorder.Event(claim, v1.EventTypeWarning, cluster.ReasonFailed, why.Error()+next)
	a.reported = true
	a.reportedNode, a.unreachableSince, a.shortageSince, a.failures.leaving = "", time.Time{}, time.Time{}, nil
	if claim.Annotations[volume.AnnSelectedNode] != node {
		a.full[node] = p.Now()
		p.attempts.change(a.uid, func(s *selection) { s.node = "" })
		p.reservations.release(a.uid)
		return why // tried again, on another node if there is one
	}
	if err := p.removeSelectedNode(ctx, a, claim, node); err != nil {
		return err
	}
	p.reservations.release(a.uid)
	return nil
}

// removeSelectedNode removes the annotation if it still names the node. The tests in the patch
// ignore other changes and never lose a newer selection.
func (p *Provisioner) removeSelectedNode(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, node string) error {
	const path = "/metadata/annotations/volume.kubernetes.io~1selected-node"
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": claim.UID},
		{"op": "test", "path": path, "value": node},
		{"op": "remove", "path": path},
	})
	if err != nil {
		return fmt.Errorf("reschedule claim: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
	defer cancel()
	freed, err := p.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.JSONPatchType, patch, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsInvalid(err):
		return nil // the claim is gone, or chose again: its events follow
	case err != nil:
		return fmt.Errorf("reschedule claim: %w", err)
	}
	p.attempts.change(a.uid, func(s *selection) { s.rescheduledAs, s.node = freed.ResourceVersion, "" })
	return nil
}
