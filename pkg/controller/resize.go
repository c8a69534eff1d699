package controller

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	resizecontroller "github.com/kubernetes-csi/external-resizer/v2/pkg/controller"
	"github.com/kubernetes-csi/external-resizer/v2/pkg/features"
	"github.com/kubernetes-csi/external-resizer/v2/pkg/resizer"
	"github.com/kubernetes-csi/external-resizer/v2/pkg/util"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/quantity"
)

const (
	// The library's workers block on nodes; shares limits those of one node and one namespace.
	resizeWorkers = 256
	// resizeTimeout bounds one lvextend, behind the node's queue.
	resizeTimeout = 3 * time.Minute
)

// awaitLibraries makes the upstream libraries wait for their workers, which could otherwise
// write after another replica has taken over.
func awaitLibraries() error {
	gate := map[string]bool{string(features.ReleaseLeaderElectionOnExit): true}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(gate); err != nil {
		return fmt.Errorf("prepare the libraries: %w", err)
	}
	return nil
}

func runResizer(ctx context.Context, c *core, all informers.SharedInformerFactory) error {
	volumes := all.Core().V1().PersistentVolumes().Informer().GetStore()
	scoped := newScopedInformers(all, func(claim *v1.PersistentVolumeClaim) bool {
		return waitsForGrowth(claim) || hasPreviousSize(volumes, claim)
	})
	defer scoped.release()
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, time.Minute)
	n := cmp.Or(c.workers, resizeWorkers)
	controller := resizecontroller.NewResizeController(names.Driver, &volumeResizer{c, ctx, newShares(n)}, c.Client, 0, scoped, limiter, false, time.Minute)
	var workers sync.WaitGroup
	workers.Go(func() { scoped.resync(ctx, libraryResync, c.AllClaims) })
	controller.Run(n, ctx, &workers)
	workers.Wait()
	return nil
}

func waitsForGrowth(claim *v1.PersistentVolumeClaim) bool {
	return claim.Status.Phase == v1.ClaimBound && claim.Spec.Resources.Requests.Storage().Cmp(*claim.Status.Capacity.Storage()) > 0
}

// hasPreviousSize reports whether the PersistentVolume has the library's annotation of the
// previous size, which the library removes once the node has grown the file system.
func hasPreviousSize(volumes cache.Store, claim *v1.PersistentVolumeClaim) bool {
	obj, _, err := volumes.GetByKey(claim.Spec.VolumeName)
	pv, ok := obj.(*v1.PersistentVolume)
	return err == nil && ok && metav1.HasAnnotation(pv.ObjectMeta, util.AnnPreResizeCapacity)
}

// resizeError translates a node's rejection for the library. The library goes on with the size
// it began with, whatever the claim asks for later, unless the error is final:
// ResourceExhausted is not, and FailedPrecondition means that the volume is in use. A node
// without enough free space has begun nothing, hence Internal. OutOfRange, for sizes that the
// disks can never hold, makes the library retry less often.
func resizeError(node string, err error) error {
	code, message := status.Code(err), cluster.Refusal(node, err)
	switch fleet.Reason(err) {
	case names.ReasonNoSpace:
		code = codes.Internal
		message += "; free space on that node, add some to its volume group, or lower the request again"
	case names.ReasonSizeOutOfRange:
		message += "; lower the request again, or extend its volume group"
	}
	return status.Error(code, message)
}

type volumeResizer struct {
	*core
	leading context.Context //nolint:containedctx // the library has no context to give
	shares  *shares
}

var _ resizer.Resizer = (*volumeResizer)(nil)

// Name returns the driver's name.
func (r *volumeResizer) Name() string { return names.Driver }

// DriverSupportsControlPlaneExpansion is true: the controller grows the logical volume before
// the node grows the file system.
func (r *volumeResizer) DriverSupportsControlPlaneExpansion() bool { return true }

// CanSupport reports whether the volume is ours.
func (r *volumeResizer) CanSupport(pv *v1.PersistentVolume, _ *v1.PersistentVolumeClaim) bool {
	return objects.IsOurs(pv)
}

// Resize grows the logical volume. Its errors are gRPC statuses, by which the library decides
// about retries.
func (r *volumeResizer) Resize(pv *v1.PersistentVolume, size resource.Quantity) (resource.Quantity, bool, error) {
	node, ok := objects.NodeOf(pv)
	if !ok {
		return size, false, status.Errorf(codes.FailedPrecondition, "PersistentVolume %s does not name its node by %s", pv.Name, names.TopologyNode)
	}
	if size.CmpInt64(spec.MaximumRequest) > 0 {
		return size, false, status.Errorf(codes.OutOfRange, "spec.resources.requests.storage: %s is not allowed, allowed: at most %s", size.String(), quantity.Bytes(spec.MaximumRequest))
	}
	release, err := r.shares.take(node, claimNamespace(pv))
	if err != nil {
		return size, false, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(r.leading, resizeTimeout)
	defer cancel()
	vol, err := r.Fleet.ExpandVolume(ctx, node, &lvmdv1.ExpandVolumeRequest{Id: pv.Spec.CSI.VolumeHandle, RequiredBytes: size.Value()})
	if fleet.IsNotConnected(err) {
		return size, false, status.Error(codes.Unavailable, cluster.Refusal(node, err))
	}
	if err != nil {
		return size, false, resizeError(node, err)
	}
	r.Log.Info("volume grown", "volume", pv.Name, "volume_id", vol.GetId(), "node", node, "bytes", vol.GetSizeBytes())
	block := pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == v1.PersistentVolumeBlock
	return *resource.NewQuantity(vol.GetSizeBytes(), resource.BinarySI), !block, nil
}
