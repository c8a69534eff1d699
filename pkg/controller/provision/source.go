package provision

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/quantity"
)

// copyTimeout bounds one call. The copy outlives it, and the next call waits for the same
// copy.
const copyTimeout = time.Minute

type notReadyError struct{ why string }

func (e *notReadyError) Error() string { return e.why }

func notReady(format string, args ...any) error {
	return &notReadyError{fmt.Sprintf("spec.dataSource: "+format+"; waiting for it", args...)}
}

type sources struct {
	*cluster.Cluster
	snapshots         snapshotclient.Interface // nil for none
	attributesClasses cache.TypedSharedIndexInformer[*storagev1.VolumeAttributesClass]
}

// find returns *spec.InvalidError for impossible sources, *notReadyError for sources to wait
// for, and other errors for an early retry.
func (s sources) find(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, r spec.Request) (*spec.Origin, error) {
	var from *spec.Origin
	var err error
	if r.Source.Kind == spec.KindSnapshot {
		from, err = s.findSnapshot(ctx, claim, r)
	} else {
		from, err = s.findClaim(claim, r)
	}
	if err != nil {
		return nil, err
	}
	if node, err := s.NodeLister.Get(from.Node); err == nil && !spec.AllowedBy(class.AllowedTopologies, node) {
		return nil, &spec.InvalidError{Field: "spec.dataSource", Given: fmt.Sprintf("%s, which is on node %s,", from.What, from.Node),
			Allowed: fmt.Sprintf("sources on the nodes that StorageClass %s allows (allowedTopologies)", class.Name)}
	}
	return from, nil
}

func (s sources) findClaim(claim *v1.PersistentVolumeClaim, r spec.Request) (*spec.Origin, error) {
	what := "claim " + r.Source.Name
	source := s.ClaimAt(claim.Namespace + "/" + r.Source.Name)
	switch {
	case source == nil:
		return nil, notReady("%s does not exist in namespace %s", what, claim.Namespace)
	case source.DeletionTimestamp != nil && !IsProtected(source):
		return nil, notReady("%s is being deleted", what)
	case source.Spec.VolumeName == "" || source.Status.Phase != v1.ClaimBound:
		return nil, notReady("%s is not bound to a volume yet", what)
	}
	pv, err := s.VolumeLister.Get(source.Spec.VolumeName)
	if err != nil {
		return nil, fmt.Errorf("PersistentVolume %s of %s: %w", source.Spec.VolumeName, what, err)
	}
	node, ok := objects.NodeOf(pv)
	switch {
	case !objects.IsOurs(pv) || !ok:
		return nil, &spec.InvalidError{Field: "spec.dataSource", Given: fmt.Sprintf("%s, whose volume is not one of %s,", what, names.Driver),
			Allowed: "a claim whose volume is"}
	case !objects.BelongsTo(pv, source):
		return nil, fmt.Errorf("PersistentVolume %s does not belong to %s", pv.Name, what)
	}
	if block := pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == v1.PersistentVolumeBlock; block != (r.Mode == lvmdv1.VolumeMode_VOLUME_MODE_BLOCK) {
		mode := v1.PersistentVolumeFilesystem
		if block {
			mode = v1.PersistentVolumeBlock
		}
		return nil, &spec.InvalidError{Field: "spec.volumeMode", Given: "another mode than that of " + what, Allowed: string(mode)}
	}
	if least := source.Spec.Resources.Requests[v1.ResourceStorage]; least.CmpInt64(r.Bytes) > 0 {
		return nil, &spec.InvalidError{Field: "spec.resources.requests.storage", Given: quantity.Bytes(r.Bytes),
			Allowed: fmt.Sprintf("at least %s, the size of %s", least.String(), what)}
	}
	return &spec.Origin{What: what, Node: node, Claim: source, Source: &lvmdv1.VolumeSource{VolumeId: pv.Spec.CSI.VolumeHandle}}, nil
}

// suits checks a claim against the report of the source's node, which must be connected.
func suits(class *storagev1.StorageClass, r spec.Request, view *fleet.View) error {
	deviceClass, ok := view.Class(r.DeviceClass)
	if !ok {
		return noSuchClass(class, r.DeviceClass, view)
	}
	id := r.From.Source.GetVolumeId()
	if id == "" {
		return nil // the node checks snapshots
	}
	vol, ok := view.Volumes[id]
	switch {
	case !ok:
		return notReady("node %s does not report the volume of %s", view.Node, r.From.What)
	case vol.GetDeviceClass() != deviceClass.GetName():
		return &spec.InvalidError{Field: spec.ClassField(class, names.ParamDeviceClass), Given: fmt.Sprintf("%q, while %s is in another device class,", deviceClass.GetName(), r.From.What),
			Allowed: fmt.Sprintf("%q", vol.GetDeviceClass())}
	case vol.GetFsType() != r.FSType:
		return &spec.InvalidError{Field: spec.ClassField(class, names.ParamFSType), Given: fmt.Sprintf("%q, while %s has another file system,", r.FSType, r.From.What),
			Allowed: fmt.Sprintf("%q", vol.GetFsType())}
	}
	return nil
}

// Intervals of retries without an event. Claims that become bound are events.
const (
	lookForSoon   = time.Second
	lookForSource = 15 * time.Second
)

// selectSourceNode selects the source's node for late binding. The scheduler rejects all other
// nodes for a claim with a selected node, so a Pod meant for another one is rescheduled there.
func (s sources) selectSourceNode(ctx context.Context, claim *v1.PersistentVolumeClaim, from *spec.Origin) error {
	if selected, err := selectNode(ctx, s.Cluster, claim, from.Node); !selected || err != nil {
		return err
	}
	message := fmt.Sprintf("the volume can only be on node %s, where %s is", from.Node, from.What)
	if other := claim.Annotations[volume.AnnSelectedNode]; other != "" {
		message += fmt.Sprintf("; the scheduler, which chose node %s, is asked to put the Pod there", other)
	}
	s.Recorder.Event(claim, v1.EventTypeNormal, cluster.ReasonProvisioning, message)
	return nil
}

// selectNode returns false if the claim is gone or has changed: an event follows.
func selectNode(ctx context.Context, c *cluster.Cluster, claim *v1.PersistentVolumeClaim, node string) (bool, error) {
	_, err := cluster.SelectNode(ctx, c.Client, claim, node)
	if cluster.IsOutdated(err) {
		return false, nil
	}
	return err == nil, err
}

var sourceAdvice = map[string]string{
	names.ReasonNoSpace:       "; it can be on no other node: free space there",
	names.ReasonVolumeInUse:   "; stop the Pods that use the source until it is copied (volumes of thin classes can be cloned while they are in use)",
	names.ReasonNotThin:       "; name the StorageClass of the source",
	names.ReasonDeviceMissing: "; it can be on no other node",
}
