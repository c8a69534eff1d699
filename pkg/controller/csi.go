package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/csiservice"
	"github.com/carve-csi/carve/pkg/csisocket"
	"github.com/carve-csi/carve/pkg/scheduler"
)

const (
	// Parameters by which the upstream provisioner says for whom a volume is
	// (--extra-create-metadata). They are not the user's.
	paramClaimName      = "csi.storage.k8s.io/pvc/name"
	paramClaimNamespace = "csi.storage.k8s.io/pvc/namespace"
	paramVolumeName     = "csi.storage.k8s.io/pv/name"
	// nodeIDAnnotation is where the kubelet notes the CSI drivers of a node.
	nodeIDAnnotation = "csi.volume.kubernetes.io/nodeid"
)

// serveCSI serves the CSI Controller service until ctx is done. Every replica
// does: lvmd's own admission is the authority, and nothing is written to the
// API server.
func (c *Controller) serveCSI(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), c.core.synced) {
		return nil
	}
	listener, err := csisocket.Listen(ctx, c.o.CSISocket)
	if err != nil {
		return fmt.Errorf("listen for CSI calls: %w", err)
	}
	return c.csiService().Serve(ctx, listener)
}

func (c *Controller) csiService() *csiservice.Service {
	return csiservice.New(csiservice.Options{
		Fleet: c.core.fleet, Ledger: c.core.ledger, Request: c.core.request, NodeOf: c.core.nodeOfHandle,
		Absent: c.core.absentNodes, NodeGone: c.core.nodeGone, ClusterID: c.core.clusterID,
		Ready: c.Ready, Version: c.o.Version, Log: c.o.Log.With("component", "csi"),
	})
}

// request reads a wish as a claim of a StorageClass with its parameters would
// be read. The volume carries no claim's UID: the audit leaves it alone.
func (c *core) request(w csiservice.Wish) (*lvmdv1.CreateVolumeRequest, scheduler.Policy, error) {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "of the request"}, Parameters: map[string]string{}, MountOptions: w.MountFlags}
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.Parameters[paramClaimNamespace], Name: w.Parameters[paramClaimName]}}
	for key, value := range w.Parameters {
		if key != paramClaimName && key != paramClaimNamespace && key != paramVolumeName {
			class.Parameters[key] = value
		}
	}
	if w.FSType != "" {
		class.Parameters[names.ParamFSType] = w.FSType
	}
	params, err := parseClass(class)
	if err != nil {
		return nil, "", err
	}
	if w.Bytes > maximumRequest {
		return nil, "", &InvalidError{Field: "capacity_range", Given: fmt.Sprint(w.Bytes), Allowed: fmt.Sprintf("at most %d bytes", int64(maximumRequest))}
	}
	r := request{classParameters: params, bytes: w.Bytes, mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM}
	if w.Block {
		r.mode, r.fsType = lvmdv1.VolumeMode_VOLUME_MODE_BLOCK, ""
	} else if err := params.fileSystem.suitsClaim(claim, class); err != nil {
		return nil, "", err
	}
	ask := r.create(claim, c.clusterID)
	ask.Name, ask.LimitBytes = w.Name, w.LimitBytes
	return ask, params.placement, nil
}

// nodeOfHandle returns the node that a PersistentVolume of ours names for a
// volume.
func (c *core) nodeOfHandle(id string) (string, bool) {
	objs, err := c.volumes.GetIndexer().ByIndex(byHandle, id)
	if err != nil || len(objs) == 0 {
		return "", false
	}
	pv, ok := objs[0].(*v1.PersistentVolume)
	if !ok {
		return "", false
	}
	return nodeOf(pv)
}

// absentNodes returns the nodes of the cluster that have, or had, an agent of
// ours, and are not connected. Those that are out of service are not in the
// cluster: see nodeGone.
func (c *core) absentNodes() []string {
	connected := map[string]bool{}
	for _, view := range c.fleet.Views() {
		connected[view.Node] = view.Connected
	}
	var out []string
	for _, obj := range c.nodes.GetStore().List() {
		node, ok := obj.(*v1.Node)
		if !ok || connected[node.Name] || outOfService(node) {
			continue
		}
		if _, known := connected[node.Name]; known || hasDriver(node) {
			out = append(out, node.Name)
		}
	}
	slices.SortFunc(out, strings.Compare)
	return out
}

// hasDriver tells whether the kubelet noted our driver on a node.
func hasDriver(node *v1.Node) bool {
	ids := map[string]string{}
	if err := json.Unmarshal([]byte(node.Annotations[nodeIDAnnotation]), &ids); err != nil {
		return false
	}
	_, has := ids[names.Driver]
	return has
}
