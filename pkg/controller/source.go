package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/fleet"
)

const (
	kindClaim    = "PersistentVolumeClaim"
	kindSnapshot = "VolumeSnapshot"
	// snapshotGroup is the API group of kindSnapshot.
	snapshotGroup = "snapshot.storage.k8s.io"
	// copyTimeout bounds one call for a volume that is made of another one. A
	// copy goes on when the call ends; the next one waits for it again.
	copyTimeout = time.Minute
)

// dataSource is what a claim asks to be filled from: an object of its own
// namespace.
type dataSource struct{ kind, name string }

// sourceOf reads a claim's data source, nil for none. Sources of other kinds
// are those of volume populators, for which it returns false. Errors are
// *InvalidError.
func sourceOf(claim *v1.PersistentVolumeClaim) (source *dataSource, ours bool, err error) {
	var group, namespace *string
	switch ref, old := claim.Spec.DataSourceRef, claim.Spec.DataSource; {
	case ref != nil:
		source, group, namespace = &dataSource{ref.Kind, ref.Name}, ref.APIGroup, ref.Namespace
	case old != nil:
		source, group = &dataSource{old.Kind, old.Name}, old.APIGroup
	default:
		return nil, true, nil
	}
	core := group == nil || *group == ""
	claimed, snapshot := core && source.kind == kindClaim, !core && *group == snapshotGroup && source.kind == kindSnapshot
	if !claimed && !snapshot {
		return nil, false, nil
	}
	if namespace != nil && *namespace != "" && *namespace != claim.Namespace {
		return nil, true, &InvalidError{Field: "spec.dataSourceRef.namespace", Given: fmt.Sprintf("%q", *namespace), Allowed: "the claim's own namespace"}
	}
	return source, true, nil
}

// populatedByOthers tells claims that a volume populator fills: it makes a
// claim of its own for us, and this one is not ours to provision.
func populatedByOthers(claim *v1.PersistentVolumeClaim) bool {
	_, ours, _ := sourceOf(claim)
	return !ours
}

// sourceIndexer indexes claims by the claim that they are to be a clone of.
func sourceIndexer(obj any) ([]string, error) {
	claim, ok := obj.(*v1.PersistentVolumeClaim)
	if !ok {
		return nil, nil
	}
	if source, _, err := sourceOf(claim); err == nil && source != nil && source.kind == kindClaim {
		return []string{claim.Namespace + "/" + source.name}, nil
	}
	return nil, nil
}

// origin is a data source that was found.
type origin struct {
	// what names it in messages.
	what string
	// node is where it is, and where alone the claim's volume can be.
	node   string
	source *lvmdv1.VolumeSource
	// claim is the source's claim, which is to be protected meanwhile; nil for
	// a snapshot.
	claim *v1.PersistentVolumeClaim
}

// notReadyError says why a data source cannot be used yet.
type notReadyError struct{ why string }

func (e *notReadyError) Error() string { return e.why }

func notReady(format string, args ...any) error {
	return &notReadyError{fmt.Sprintf("spec.dataSource: "+format+"; waiting for it", args...)}
}

// find finds a claim's data source. Errors are *InvalidError for what can never
// be, *notReadyError for what may come to be, and others for what is worth
// another look soon.
func (p *provisioner) find(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, r request) (*origin, error) {
	var from *origin
	var err error
	if r.source.kind == kindSnapshot {
		from, err = p.findSnapshot(ctx, claim, r)
	} else {
		from, err = p.findClaim(claim, r)
	}
	if err != nil {
		return nil, err
	}
	if node, err := p.nodeLister.Get(from.node); err == nil && !allowedBy(class.AllowedTopologies, node) {
		return nil, &InvalidError{Field: "spec.dataSource", Given: fmt.Sprintf("%s, which is on node %s,", from.what, from.node),
			Allowed: fmt.Sprintf("sources on the nodes that StorageClass %s allows (allowedTopologies)", class.Name)}
	}
	return from, nil
}

// findClaim is find for a claim.
func (p *provisioner) findClaim(claim *v1.PersistentVolumeClaim, r request) (*origin, error) {
	what := "claim " + r.source.name
	obj, _, err := p.claims.GetStore().GetByKey(claim.Namespace + "/" + r.source.name)
	source, ok := obj.(*v1.PersistentVolumeClaim)
	switch {
	case err != nil || !ok:
		return nil, notReady("%s does not exist in namespace %s", what, claim.Namespace)
	case source.DeletionTimestamp != nil && !isProtected(source):
		return nil, notReady("%s is being deleted", what)
	case source.Spec.VolumeName == "" || source.Status.Phase != v1.ClaimBound:
		return nil, notReady("%s is not bound to a volume yet", what)
	}
	pv, err := p.volumeLister.Get(source.Spec.VolumeName)
	if err != nil {
		return nil, fmt.Errorf("PersistentVolume %s of %s: %w", source.Spec.VolumeName, what, err)
	}
	node, ok := nodeOf(pv)
	switch {
	case !isOurs(pv) || !ok:
		return nil, &InvalidError{Field: "spec.dataSource", Given: fmt.Sprintf("%s, whose volume is not one of %s,", what, names.Driver),
			Allowed: "a claim whose volume is"}
	case !belongsTo(pv, source):
		return nil, fmt.Errorf("PersistentVolume %s does not belong to %s", pv.Name, what)
	}
	if block := pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == v1.PersistentVolumeBlock; block != (r.mode == lvmdv1.VolumeMode_VOLUME_MODE_BLOCK) {
		mode := v1.PersistentVolumeFilesystem
		if block {
			mode = v1.PersistentVolumeBlock
		}
		return nil, &InvalidError{Field: "spec.volumeMode", Given: "another mode than that of " + what, Allowed: string(mode)}
	}
	if least := source.Spec.Resources.Requests[v1.ResourceStorage]; least.CmpInt64(r.bytes) > 0 {
		return nil, &InvalidError{Field: "spec.resources.requests.storage", Given: resource.NewQuantity(r.bytes, resource.BinarySI).String(),
			Allowed: fmt.Sprintf("at least %s, the size of %s", least.String(), what)}
	}
	return &origin{what: what, node: node, claim: source, source: &lvmdv1.VolumeSource{VolumeId: pv.Spec.CSI.VolumeHandle}}, nil
}

// suits checks a claim against what the source's node, which is connected,
// says about the source.
func (p *provisioner) suits(class *storagev1.StorageClass, r request, view *fleet.View) error {
	deviceClass, ok := view.Class(r.deviceClass)
	if !ok {
		return noSuchClass(class, r.deviceClass, view)
	}
	id := r.from.source.GetVolumeId()
	if id == "" {
		return nil // the node knows better about snapshots
	}
	vol, ok := view.Volumes[id]
	switch {
	case !ok:
		return notReady("node %s does not report the volume of %s", view.Node, r.from.what)
	case vol.GetDeviceClass() != deviceClass.GetName():
		return &InvalidError{Field: classField(class, names.ParamDeviceClass), Given: fmt.Sprintf("%q, while %s is in another device class,", deviceClass.GetName(), r.from.what),
			Allowed: fmt.Sprintf("%q", vol.GetDeviceClass())}
	case vol.GetFsType() != r.fsType:
		return &InvalidError{Field: classField(class, names.ParamFSType), Given: fmt.Sprintf("%q, while %s has another file system,", r.fsType, r.from.what),
			Allowed: fmt.Sprintf("%q", vol.GetFsType())}
	}
	return nil
}

// syncFrom takes a claim that is made of something else one step further. Where
// that is, is where the claim's volume will be, whatever the scheduler thinks.
func (p *provisioner) syncFrom(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, r request) (time.Duration, error) {
	from, err := p.find(ctx, claim, class, r)
	if err != nil {
		return p.sourceMissing(ctx, a, claim, err)
	}
	r.from = from
	if delayed(class) && claim.Annotations[volume.AnnSelectedNode] != from.node {
		return 0, p.steer(ctx, claim, from)
	}
	if err := p.settle(ctx, a, claim, from.node); err != nil {
		return 0, err
	}
	p.mu.Lock()
	if a.node != from.node {
		a.node, a.selectedAt = from.node, p.now()
	}
	p.mu.Unlock()
	p.reserve(a, from.node, r)
	view, known := p.fleet.View(from.node)
	if !known || !view.Connected {
		return p.awaitSource(ctx, a, claim, from)
	}
	if err := p.suits(class, r, view); err != nil {
		return p.sourceMissing(ctx, a, claim, err)
	}
	return p.provision(ctx, a, claim, class, r, from.node)
}

// sourceMissing waits for a data source that is not there yet, and rejects what
// cannot be.
func (p *provisioner) sourceMissing(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, why error) (time.Duration, error) {
	var invalid *InvalidError
	if errors.As(why, &invalid) {
		return p.reject(ctx, a, claim, why)
	}
	p.unreserve(a.uid)
	p.letSourceGo(a)
	var missing *notReadyError
	if !errors.As(why, &missing) {
		return 0, why
	}
	p.mu.Lock()
	left := a.began.Add(complainAfter).Sub(p.now())
	p.mu.Unlock()
	if left > 0 {
		return min(left, lookForSoon), nil // what comes together need not be in order
	}
	p.complain(a, claim, why.Error())
	return lookForSource, nil
}

// How often a source is looked for again of which no event tells: at first, and
// later. The bindings of claims are events.
const (
	lookForSoon   = time.Second
	lookForSource = 15 * time.Second
)

// awaitSource waits for the node of a data source to connect.
func (p *provisioner) awaitSource(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, from *origin) (time.Duration, error) {
	p.waiting.wait(from.node, a.uid)
	if view, ok := p.fleet.View(from.node); ok && view.Connected {
		return time.Millisecond, nil // it connected in between
	}
	gone, err := p.nodeGone(ctx, from.node)
	switch {
	case err != nil:
		return 0, err
	case gone:
		delete(a.doubts, from.node)
		p.unreserve(a.uid)
		p.letSourceGo(a)
		p.complain(a, claim, fmt.Sprintf("node %s, which held %s, is not in the cluster any more, or out of service; "+
			"delete this claim, unless the node comes back", from.node, from.what))
		return complainEvery, nil
	}
	if a.unreachableSince.IsZero() {
		a.unreachableSince = p.now()
	}
	if left := a.unreachableSince.Add(releaseUnreachable).Sub(p.now()); left > 0 {
		return left, nil
	}
	p.complain(a, claim, fmt.Sprintf("node %s, which holds %s, is not connected to the carve controller; waiting for it: %s", from.node, from.what, notConnectedAdvice))
	return complainEvery, nil
}

// steer selects the source's node for a claim that binds late. The scheduler
// passes over all other nodes for a claim that has a selected node, so a Pod
// that it meant to put elsewhere is tried again and comes to the right one.
func (p *provisioner) steer(ctx context.Context, claim *v1.PersistentVolumeClaim, from *origin) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": claim.UID, "resourceVersion": claim.ResourceVersion,
		"annotations": map[string]string{volume.AnnSelectedNode: from.node},
	}})
	if err != nil {
		return fmt.Errorf("select node: %w", err)
	}
	callCtx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	_, err = p.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(callCtx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // gone or changed: its events follow
	case err != nil:
		return fmt.Errorf("select node: %w", err)
	}
	message := fmt.Sprintf("the volume can only be on node %s, where %s is", from.node, from.what)
	if other := claim.Annotations[volume.AnnSelectedNode]; other != "" {
		message += fmt.Sprintf("; the scheduler, which chose node %s, is asked to put the Pod there", other)
	}
	p.recorder.Event(claim, v1.EventTypeNormal, reasonSourceNode, message)
	return nil
}

// copying tells how far the copying of a claim's source is, and false when no
// copy is under way.
func (p *provisioner) copying(ctx context.Context, a *attempt, claim *v1.PersistentVolumeClaim, r request) bool {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	vol, err := p.fleet.GetVolumeByName(ctx, r.from.node, a.name)
	if err != nil || vol.GetState() != lvmdv1.VolumeState_VOLUME_STATE_CREATING || vol.GetSource() == nil {
		return false
	}
	p.recorder.Eventf(claim, v1.EventTypeNormal, reasonCopying, "%s of %s of %s are copied on node %s",
		resource.NewQuantity(vol.GetCopiedBytes(), resource.BinarySI), resource.NewQuantity(vol.GetSizeBytes(), resource.BinarySI), r.from.what, r.from.node)
	return true
}
