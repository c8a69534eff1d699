package provision

import (
	"context"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/quantity"
)

// findSnapshot asks the API server: restores are rare, and nothing else would use a cache of
// snapshots.
func (s sources) findSnapshot(ctx context.Context, claim *v1.PersistentVolumeClaim, r spec.Request) (*spec.Origin, error) {
	if s.snapshots == nil {
		return nil, &spec.InvalidError{Field: "spec.dataSource", Given: "a VolumeSnapshot", Allowed: "a PersistentVolumeClaim"}
	}
	ctx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
	defer cancel()
	what := "VolumeSnapshot " + r.Source.Name
	snapshot, err := s.snapshots.SnapshotV1().VolumeSnapshots(claim.Namespace).Get(ctx, r.Source.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, notReady("%s does not exist in namespace %s", what, claim.Namespace)
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", what, err)
	case snapshot.DeletionTimestamp != nil:
		return nil, notReady("%s is being deleted", what)
	case snapshot.Status == nil || snapshot.Status.BoundVolumeSnapshotContentName == nil || snapshot.Status.ReadyToUse == nil || !*snapshot.Status.ReadyToUse:
		return nil, notReady("%s is not ready to use yet", what)
	}
	name := *snapshot.Status.BoundVolumeSnapshotContentName
	content, err := s.snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, notReady("VolumeSnapshotContent %s of %s does not exist", name, what)
	case err != nil:
		return nil, fmt.Errorf("read VolumeSnapshotContent %s: %w", name, err)
	}
	return originOf(what, snapshot, content, r)
}

func originOf(what string, snapshot *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent, r spec.Request) (*spec.Origin, error) {
	if content.Spec.Driver != names.Driver {
		return nil, &spec.InvalidError{Field: "spec.dataSource", Given: fmt.Sprintf("%s, which is not one of %s,", what, names.Driver), Allowed: "a snapshot of a volume that is"}
	}
	ref := content.Spec.VolumeSnapshotRef
	if ref.UID != snapshot.UID || ref.Namespace != snapshot.Namespace || ref.Name != snapshot.Name || content.Status == nil || content.Status.SnapshotHandle == nil {
		return nil, notReady("VolumeSnapshotContent %s is not bound to %s", content.Name, what)
	}
	node, id, ok := spec.ParseSnapshotHandle(*content.Status.SnapshotHandle)
	if !ok {
		return nil, &spec.InvalidError{Field: "spec.dataSource", Given: fmt.Sprintf("%s, with the snapshot handle %q,", what, *content.Status.SnapshotHandle), Allowed: "handles of the form NODE/ID"}
	}
	mode := v1.PersistentVolumeFilesystem
	if r.Mode == lvmdv1.VolumeMode_VOLUME_MODE_BLOCK {
		mode = v1.PersistentVolumeBlock
	}
	if content.Spec.SourceVolumeMode != nil && *content.Spec.SourceVolumeMode != mode {
		return nil, &spec.InvalidError{Field: "spec.volumeMode", Given: fmt.Sprintf("%s, another mode than that of %s,", mode, what), Allowed: string(*content.Spec.SourceVolumeMode)}
	}
	if least := snapshot.Status.RestoreSize; least != nil && least.CmpInt64(r.Bytes) > 0 {
		return nil, &spec.InvalidError{Field: "spec.resources.requests.storage", Given: quantity.Bytes(r.Bytes),
			Allowed: fmt.Sprintf("at least %s, the size of %s", least.String(), what)}
	}
	return &spec.Origin{What: what, Node: node, Source: &lvmdv1.VolumeSource{SnapshotId: id}}, nil
}
