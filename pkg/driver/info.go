package driver

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/driver/lvmdclient"
)

// capabilities lacks VOLUME_MOUNT_GROUP: the kubelet applies fsGroup (policy
// File).
var capabilities = []csi.NodeServiceCapability_RPC_Type{
	csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
	csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
	csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
	csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
	csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
	csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
}

// NodeGetCapabilities returns the capabilities of the node service.
func (n *Node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	answer := &csi.NodeGetCapabilitiesResponse{}
	for _, c := range capabilities {
		answer.Capabilities = append(answer.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: c}},
		})
	}
	return answer, nil
}

// NodeGetInfo returns the node's name, volume limit and topology. The kubelet
// calls it when it registers the plugin; from Kubernetes 1.35 on it repeats the
// call at the interval in the CSIDriver object.
func (n *Node) NodeGetInfo(ctx context.Context, _ *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{
		NodeId:             n.info.name,
		MaxVolumesPerNode:  n.info.maxVolumes(ctx),
		AccessibleTopology: &csi.Topology{Segments: map[string]string{names.TopologyNode: n.info.name}},
	}, nil
}

type nodeInfo struct {
	name       string
	background context.Context // ends with the plugin
	// See Options.MaxVolumes and Options.SmallestVolume.
	configured, smallest int64
	volumes              lvmdclient.Client
	registration         *Registration
	log                  *slog.Logger

	last atomic.Int64
}

// maxVolumes returns how many volumes the scheduler may place on the node: the
// configured limit, or the number that the volume groups' metadata could hold.
// Zero means no limit, which is better than a wrong one: before Kubernetes 1.35
// the answer stays in force even if groups are added. While lvmd does not
// answer, it is zero, or the latest answer for a kubelet that asks repeatedly.
//
// For a kubelet that asks repeatedly, a full node's limit is the number of
// volumes on it. An autoscaler that ignores free space then adds a node.
func (i *nodeInfo) maxVolumes(ctx context.Context) int64 {
	refreshes := i.registration != nil && i.registration.Refreshes()
	number, err := i.number(ctx, refreshes)
	switch {
	case err == nil:
		if before := i.last.Swap(number); refreshes && before != number {
			i.log.Info("the scheduler gets another number of volumes", "volumes", number, "before", before)
		}
		return number
	case refreshes: // The kubelet asks again, and lvmd is probably restarting.
		return i.last.Load()
	}
	i.log.Warn("the scheduler gets no number of volumes until lvmd answers how many the volume groups can hold", "error", err)
	if i.registration != nil {
		i.registration.Again(i.background, func(ctx context.Context) error {
			_, err := i.volumes.Classes(ctx)
			return err
		})
	}
	i.last.Store(0)
	return 0
}

// number may depend on free space only if the kubelet asks repeatedly:
// otherwise a full node's limit would outlast the shortage.
func (i *nodeInfo) number(ctx context.Context, repeatedly bool) (int64, error) {
	byFreeSpace := repeatedly && i.smallest > 0
	if i.configured > 0 && !byFreeSpace {
		return i.configured, nil
	}
	classes, err := i.volumes.Classes(ctx)
	if err != nil {
		return 0, err
	}
	if i.registration != nil {
		i.registration.Complete()
	}
	most := i.configured
	if most == 0 {
		var group string
		if most, group = mostVolumes(classes); group != "" && !repeatedly {
			i.log.Info("the scheduler gets no number of volumes: it is not known how many a volume group can hold", "group", group)
		}
	}
	if !byFreeSpace || !full(classes, i.smallest) {
		return most, nil
	}
	volumes, err := i.volumes.All(ctx)
	if err != nil {
		return 0, err
	}
	// The scheduler counts only volumes of claims. Count those without a
	// running Pod too, or a Pod that returns would find the node full.
	volumes = slices.DeleteFunc(volumes, func(v *lvmdv1.Volume) bool { return v.GetOwner().GetPodUid() != "" })
	there := max(1, int64(len(volumes))) // Zero would be no limit.
	if most > 0 {
		there = min(there, most)
	}
	return there, nil
}

// mostVolumes returns zero and the group if the number for a group is not
// known.
func mostVolumes(classes []*lvmdv1.DeviceClass) (sum int64, unknown string) {
	most := map[string]int64{}
	for _, class := range classes {
		for _, g := range class.GetGroups() {
			most[g.GetVgName()] = g.GetMostVolumes() // The same in each class.
		}
	}
	for group, m := range most {
		if m == 0 {
			return 0, group
		}
		sum += m
	}
	return sum, ""
}

var unusable = slices.Concat(unreachable, conditions.Unusable(conditions.NewVolume))

// full reports whether usable device classes exist and none has space for
// bytes. A node whose volume group does not exist yet is not full.
func full(classes []*lvmdv1.DeviceClass, bytes int64) bool {
	usable := false
	for _, class := range classes {
		switch {
		case class.GetMaximumVolumeSizeBytes() >= bytes:
			return false
		case class.GetTotalBytes() == 0:
		case class.GetAvailableBytes() > 0 || !slices.ContainsFunc(class.GetConditions(), func(condition *lvmdv1.Condition) bool {
			return slices.Contains(unusable, condition.GetType())
		}):
			usable = true
		}
	}
	return usable
}
