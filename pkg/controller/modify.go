package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kubernetes-csi/external-resizer/v2/pkg/modifier"
	"github.com/kubernetes-csi/external-resizer/v2/pkg/modifycontroller"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/informers"
	storageinformers "k8s.io/client-go/informers/storage"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/objects"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/fleet"
)

const (
	// See resizeWorkers.
	modifyWorkers = 64
	// modifyTimeout bounds one lvchange, behind the node's queue.
	modifyTimeout = 3 * time.Minute
)

// runModifier applies VolumeAttributesClasses by the upstream library until ctx is done.
// Before Kubernetes 1.34 the API server has none, and it only waits. classes are informers of this
// term of leadership, which it starts; the replica's own, all, continue.
func runModifier(ctx context.Context, c *core, all, classes informers.SharedInformerFactory) error {
	if !awaitResource(ctx, c.Client.Discovery(), storagev1.SchemeGroupVersion, cluster.VolumeAttributesClasses, c.Log) {
		return nil
	}
	scoped := newScopedInformers(all, waitsForClass)
	defer scoped.release()
	defer classes.Shutdown()
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, time.Minute)
	n := cmp.Or(c.workers, modifyWorkers)
	controller := modifycontroller.NewModifyController(names.Driver, &volumeModifier{c, ctx, newShares(n)}, c.Client, 0, time.Minute, false,
		withClasses{scoped, classes}, limiter)
	// The library ignores a claim whose class did not exist when the claim changed.
	changed := func(class *storagev1.VolumeAttributesClass) {
		if class.DriverName != names.Driver {
			return
		}
		for _, claim := range c.AllClaims() {
			if ptr.Deref(claim.Spec.VolumeAttributesClassName, "") == class.Name && waitsForClass(claim) {
				scoped.again(claim)
			}
		}
	}
	if _, err := cluster.Watch(cluster.OnChange(classes.Storage().V1().VolumeAttributesClasses().TypedInformer(), changed, nil)); err != nil {
		return err
	}
	classes.Start(ctx.Done())
	var workers sync.WaitGroup
	workers.Go(func() { scoped.resync(ctx, libraryResync, c.AllClaims) })
	controller.Run(n, ctx, &workers)
	workers.Wait()
	return nil
}

// waitsForClass includes changes under way: the library finishes them even if the claim
// returns to its previous class.
func waitsForClass(claim *v1.PersistentVolumeClaim) bool {
	asked := ptr.Deref(claim.Spec.VolumeAttributesClassName, "")
	return claim.Status.ModifyVolumeStatus != nil || asked != "" && asked != ptr.Deref(claim.Status.CurrentVolumeAttributesClassName, "")
}

// withClasses adds separate informers for classes.
type withClasses struct {
	informers.SharedInformerFactory
	classes informers.SharedInformerFactory
}

func (w withClasses) Storage() storageinformers.Interface { return w.classes.Storage() }

type volumeModifier struct {
	*core
	leading context.Context //nolint:containedctx // that of the library does not end with the leadership
	shares  *shares
}

var _ modifier.Modifier = (*volumeModifier)(nil)

// Name returns the driver's name.
func (m *volumeModifier) Name() string { return names.Driver }

// Modify sets a volume's attributes. Its errors are gRPC statuses: InvalidArgument is final
// and lets the claim return to its previous class.
func (m *volumeModifier) Modify(_ context.Context, pv *v1.PersistentVolume, parameters map[string]string) error {
	limits, err := spec.ParseAttributes("VolumeAttributesClass", parameters)
	var invalid *spec.InvalidError
	switch {
	case errors.As(err, &invalid):
		return status.Error(codes.InvalidArgument, err.Error())
	case err != nil:
		return status.Error(codes.Internal, err.Error())
	}
	node, ok := objects.NodeOf(pv)
	if !ok {
		return status.Errorf(codes.FailedPrecondition, "PersistentVolume %s does not name its node by %s", pv.Name, names.TopologyNode)
	}
	release, err := m.shares.take(node, claimNamespace(pv))
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(m.leading, modifyTimeout)
	defer cancel()
	vol, err := m.Fleet.ModifyVolume(ctx, node, &lvmdv1.ModifyVolumeRequest{Id: pv.Spec.CSI.VolumeHandle, IoLimits: limits.Proto()})
	switch {
	case err == nil:
		m.Log.Info("volume modified", "volume", pv.Name, "volume_id", vol.GetId(), "node", node, "io_limits", limits.String())
		return nil
	case fleet.IsNotConnected(err):
		return status.Error(codes.Unavailable, cluster.Refusal(node, err))
	case status.Code(err) == codes.Unimplemented:
		return status.Error(codes.Unavailable, fmt.Sprintf("node %s: its agent is of an older version, which knows no I/O limits", node))
	}
	return status.Error(status.Code(err), cluster.Refusal(node, err))
}
