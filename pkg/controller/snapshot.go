package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotscheme "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/scheme"
	snapshotinformers "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions"
	sidecar "github.com/kubernetes-csi/external-snapshotter/v8/pkg/sidecar-controller"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/snapshotter"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/utils"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"github.com/carve-csi/carve/api/leadership"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/fleet"
)

const (
	// See resizeWorkers.
	snapshotWorkers = 256
	// snapshotTimeout bounds one LVM command, behind others.
	snapshotTimeout = 2 * time.Minute
)

// client-go's scheme lacks the objects of the library's Events.
func init() { utilruntime.Must(snapshotscheme.AddToScheme(scheme.Scheme)) }

// runSnapshotter serves VolumeSnapshotContents by the upstream library until ctx is done. It
// waits for their definition.
func (c *Controller) runSnapshotter(ctx context.Context) error {
	if !awaitResource(ctx, c.o.Snapshots.Discovery(), snapshotv1.SchemeGroupVersion, "volumesnapshotcontents", c.o.Log) {
		return nil
	}
	factory := snapshotinformers.NewSharedInformerFactory(c.o.Snapshots, libraryResync)
	defer factory.Shutdown()
	limiter := func() workqueue.TypedRateLimiter[string] {
		return workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, time.Minute)
	}
	objects := factory.Snapshot().V1()
	contents := objects.VolumeSnapshotContents().Informer()
	if err := contents.AddIndexers(byHandle()); err != nil {
		return fmt.Errorf("index VolumeSnapshotContents: %w", err)
	}
	controller := sidecar.NewCSISnapshotSideCarController(c.o.Snapshots, c.o.Client, names.Driver,
		objects.VolumeSnapshotContents(), objects.VolumeSnapshotClasses(), c.snapshotter(ctx, contents.GetIndexer()), nil,
		snapshotTimeout, libraryResync, "snapshot", -1, "groupsnapshot", -1, true, limiter(), false, nil, nil, limiter())
	running, stop := context.WithCancel(ctx)
	defer stop() // before the factory waits for its informers
	factory.Start(running.Done())
	var workers sync.WaitGroup
	controller.Run(cmp.Or(c.core.workers, snapshotWorkers), running.Done(), &workers)
	workers.Wait()
	return nil
}

type volumeSnapshotter struct {
	*core
	leading context.Context //nolint:containedctx // the library's contexts know nothing of leading
	// contents are indexed by byHandle.
	contents cache.Indexer
	shares   *shares
}

func (c *Controller) snapshotter(leading context.Context, contents cache.Indexer) *volumeSnapshotter {
	return &volumeSnapshotter{c.core, leading, contents, newShares(cmp.Or(c.core.workers, snapshotWorkers))}
}

const indexHandle = "handle"

func byHandle() cache.Indexers {
	return cache.Indexers{indexHandle: func(obj any) ([]string, error) {
		content, ok := obj.(*snapshotv1.VolumeSnapshotContent)
		if !ok || content.Spec.Driver != names.Driver {
			return nil, nil
		}
		handle := content.Spec.Source.SnapshotHandle
		if content.Status != nil && content.Status.SnapshotHandle != nil { // as the library does
			handle = content.Status.SnapshotHandle
		}
		return []string{ptr.Deref(handle, "")}, nil
	}}
}

var _ snapshotter.Snapshotter = (*volumeSnapshotter)(nil)

// CreateSnapshot takes a snapshot. Its name contains the VolumeSnapshot's UID, so it is
// unique.
func (v *volumeSnapshotter) CreateSnapshot(ctx context.Context, name, volume string, parameters, _ map[string]string) (string, string, time.Time, int64, bool, error) {
	extra := []string{utils.PrefixedVolumeSnapshotNameKey, utils.PrefixedVolumeSnapshotNamespaceKey, utils.PrefixedVolumeSnapshotContentNameKey}
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if !slices.Contains(extra, key) {
			return "", "", time.Time{}, 0, false, status.Errorf(codes.InvalidArgument, "VolumeSnapshotClass: parameters[%s] is not allowed, allowed: none", key)
		}
	}
	namespace := parameters[utils.PrefixedVolumeSnapshotNamespaceKey]
	// Any node can report any id: only the PersistentVolume is trusted for the node.
	node, known := v.NodeOfVolume(volume)
	if !known {
		return "", "", time.Time{}, 0, false, status.Errorf(codes.NotFound, "no PersistentVolume names a node for volume %s", volume)
	}
	release, err := v.shares.take(node, namespace)
	if err != nil {
		return "", "", time.Time{}, 0, false, err
	}
	defer release()
	ctx, free := leadership.During(ctx, v.leading)
	defer free()
	made, err := v.Fleet.CreateSnapshot(ctx, node, &lvmdv1.CreateSnapshotRequest{Name: name, SourceVolumeId: volume,
		Owner: &lvmdv1.Owner{ClusterId: v.ID, ClaimNamespace: namespace, ClaimName: parameters[utils.PrefixedVolumeSnapshotNameKey]}})
	switch {
	case err != nil && v.isLost(ctx, node, err):
		return "", "", time.Time{}, 0, false, status.Errorf(codes.NotFound, "volume %s was on node %s, which is lost", volume, node)
	case err != nil:
		return "", "", time.Time{}, 0, false, snapshotError(node, err)
	}
	return names.Driver, spec.SnapshotHandle(node, made.GetId()), made.GetCreatedAt().AsTime(), made.GetSizeBytes(), made.GetReady(), nil
}

// DeleteSnapshot removes a snapshot, or abandons it on a lost node: if that returns, nothing
// finds the snapshot again.
func (v *volumeSnapshotter) DeleteSnapshot(ctx context.Context, handle string, _ map[string]string) error {
	node, id, ok := spec.ParseSnapshotHandle(handle)
	if !ok {
		return nil // not a handle of ours
	}
	release, err := v.shares.take(node, v.namespaceOf(handle))
	if err != nil {
		return err
	}
	defer release()
	ctx, free := leadership.During(ctx, v.leading)
	defer free()
	err = v.Fleet.DeleteSnapshot(ctx, node, &lvmdv1.DeleteSnapshotRequest{Id: id})
	if err == nil || v.isLost(ctx, node, err) {
		return nil
	}
	return snapshotError(node, err)
}

// GetSnapshotStatus reports on an existing snapshot.
func (v *volumeSnapshotter) GetSnapshotStatus(ctx context.Context, handle string, _ map[string]string) (bool, time.Time, int64, string, error) {
	node, id, ok := spec.ParseSnapshotHandle(handle)
	if !ok {
		return false, time.Time{}, 0, "", status.Errorf(codes.NotFound, "no snapshot %q", handle)
	}
	release, err := v.shares.take(node, v.namespaceOf(handle))
	if err != nil {
		return false, time.Time{}, 0, "", err
	}
	defer release()
	found, err := v.Fleet.GetSnapshot(ctx, node, &lvmdv1.GetSnapshotRequest{Id: id})
	if err != nil {
		return false, time.Time{}, 0, "", snapshotError(node, err)
	}
	return found.GetReady(), found.GetCreatedAt().AsTime(), found.GetSizeBytes(), "", nil
}

func (v *volumeSnapshotter) isLost(ctx context.Context, node string, err error) bool {
	if !fleet.IsNotConnected(err) {
		return false
	}
	lost, err := v.NodeLost(ctx, node)
	return err == nil && lost
}

// snapshotError maps unknown outcomes to Unavailable: from Internal, for one, the library
// concludes that no snapshot was made.
func snapshotError(node string, err error) error {
	code := status.Code(err)
	if fleet.IsNotConnected(err) || fleet.MayHaveHappened(err) {
		code = codes.Unavailable
	}
	return status.Error(code, cluster.Refusal(node, err))
}

// namespaceOf returns the namespace of the VolumeSnapshot with the handle, or "". The library
// does not pass it, but keeps the VolumeSnapshotContent until the call succeeds.
// Administrators can make several with one handle: then the first by name counts.
func (v *volumeSnapshotter) namespaceOf(handle string) string {
	contents, err := v.contents.ByIndex(indexHandle, handle)
	if err != nil {
		return ""
	}
	first := ""
	for _, obj := range contents {
		if content, ok := obj.(*snapshotv1.VolumeSnapshotContent); ok {
			namespace := content.Spec.VolumeSnapshotRef.Namespace
			if first == "" || namespace < first {
				first = namespace
			}
		}
	}
	return first
}
