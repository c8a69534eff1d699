package driver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/carve-csi/carve/api/names"
)

// capabilities of the node service. VOLUME_MOUNT_GROUP is not among them: the
// kubelet applies fsGroup (policy File).
var capabilities = []csi.NodeServiceCapability_RPC_Type{
	csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
	csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
	csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
	csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
	csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
	csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
}

// NodeGetCapabilities lists what the node service can do.
func (n *Node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	answer := &csi.NodeGetCapabilitiesResponse{}
	for _, c := range capabilities {
		answer.Capabilities = append(answer.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: c}},
		})
	}
	return answer, nil
}

// NodeGetInfo names the node and its place in the topology. The kubelet asks for it
// when it registers the plugin.
func (n *Node) NodeGetInfo(ctx context.Context, _ *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{
		NodeId:             n.options.NodeName,
		MaxVolumesPerNode:  n.maxVolumes(ctx),
		AccessibleTopology: &csi.Topology{Segments: map[string]string{names.TopologyNode: n.options.NodeName}},
	}, nil
}

// maxVolumes is how many volumes the scheduler may place on the node: as
// configured, or as many as the metadata of the volume groups could hold in all.
// Zero is no limit, which is better than a wrong one: the answer stays in force
// when groups come. Where lvmd does not answer, it is zero until it does.
func (n *Node) maxVolumes(ctx context.Context) int64 {
	if n.options.MaxVolumes > 0 {
		return n.options.MaxVolumes
	}
	classes, err := n.volumes.Classes(ctx)
	if err != nil {
		n.options.Log.Warn("the scheduler gets no number of volumes until lvmd answers how many the volume groups can hold", "error", err)
		if registration := n.options.Registration; registration != nil {
			registration.Again(n.stager.background, func(ctx context.Context) error {
				_, err := n.volumes.Classes(ctx)
				return err
			})
		}
		return 0
	}
	if registration := n.options.Registration; registration != nil {
		registration.Complete()
	}
	most := map[string]int64{}
	for _, class := range classes {
		for _, g := range class.GetGroups() {
			most[g.GetVgName()] = g.GetMostVolumes() // The same in each class.
		}
	}
	var sum int64
	for group, m := range most {
		if m == 0 {
			n.options.Log.Info("the scheduler gets no number of volumes: it is not known how many a volume group can hold", "group", group)
			return 0
		}
		sum += m
	}
	return sum
}
