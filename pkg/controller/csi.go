package controller

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/csiservice"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/csisocket"
	"github.com/carve-csi/carve/pkg/quantity"
	"github.com/carve-csi/carve/pkg/scheduler"
)

const (
	// Parameters by which the upstream provisioner says for whom a volume is
	// (--extra-create-metadata). They are not the user's.
	paramClaimName      = "csi.storage.k8s.io/pvc/name"
	paramClaimNamespace = "csi.storage.k8s.io/pvc/namespace"
	paramVolumeName     = "csi.storage.k8s.io/pv/name"
)

// serveCSI serves the CSI Controller service until ctx is done. Every replica
// does: lvmd's own admission is the authority, and nothing is written to the
// API server.
func (c *Controller) serveCSI(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), c.core.Synced) {
		return nil
	}
	listener, err := csisocket.Listen(ctx, c.o.CSISocket)
	if err != nil {
		return fmt.Errorf("listen for CSI calls: %w", err)
	}
	return c.csiService().Serve(ctx, listener)
}

func (c *Controller) csiService() *csiservice.Service {
	return csiservice.New(c.core.Cluster, csiservice.Options{
		Ledger: c.core.ledger, Available: c.core.available, IDs: c.core.ids, Request: c.core.request,
		Answered: c.core.metrics.answered.Observe, Ready: c.Ready, Version: c.o.Version, Log: c.o.Log.With("component", "csi"),
	})
}

// request reads a request as a claim of a StorageClass with its parameters would
// be read. The volume carries no claim's UID: the audit leaves it alone.
func (c *core) request(w csiservice.Desired) (*lvmdv1.CreateVolumeRequest, scheduler.Policy, error) {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "of the request"}, Parameters: map[string]string{}, MountOptions: w.MountFlags}
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.Parameters[paramClaimNamespace], Name: w.Parameters[paramClaimName]}}
	if known := c.ClaimAt(claim.Namespace + "/" + claim.Name); known != nil && spec.VolumeName(known) == w.Name {
		claim.OwnerReferences = known.OwnerReferences
	}
	for key, value := range w.Parameters {
		if key != paramClaimName && key != paramClaimNamespace && key != paramVolumeName {
			class.Parameters[key] = value
		}
	}
	if w.FSType != "" {
		class.Parameters[names.ParamFSType] = w.FSType
	}
	params, err := spec.ParseClass(class)
	if err != nil {
		return nil, "", err
	}
	if w.Bytes > spec.MaximumRequest {
		return nil, "", &spec.InvalidError{Field: "capacity_range", Given: fmt.Sprint(w.Bytes), Allowed: "at most " + quantity.Bytes(spec.MaximumRequest)}
	}
	if w.IOLimits != nil {
		params.IOLimits = *w.IOLimits
	}
	r := spec.Request{Class: params, Bytes: w.Bytes, Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM}
	if w.Block {
		r.Mode, r.FSType = lvmdv1.VolumeMode_VOLUME_MODE_BLOCK, ""
	}
	if err := r.SuitsClaim(claim, class); err != nil {
		return nil, "", err
	}
	ask := r.CreateVolume(claim, c.ID)
	ask.Name, ask.LimitBytes = w.Name, w.LimitBytes
	return ask, params.Placement, nil
}
