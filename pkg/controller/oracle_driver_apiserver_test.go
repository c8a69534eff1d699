//go:build apiserver

package controller

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/csisocket"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/must"
)

// nodesDriver has only the checks that the scenarios need.
type nodesDriver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	nodes map[string]*lvmdfake.Server
}

func serveDriver(t *testing.T, nodes map[string]*lvmdfake.Server) (socket string) {
	t.Helper()
	// Not t.TempDir: a socket's path is limited to 107 bytes.
	dir := must.Get(os.MkdirTemp("", "carve"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "csi.sock")
	listener := must.Get(csisocket.Listen(t.Context(), socket))(t)
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, nodesDriver{nodes: nodes})
	csi.RegisterControllerServer(server, nodesDriver{nodes: nodes})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return socket
}

func (nodesDriver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	answer := &csi.GetPluginCapabilitiesResponse{}
	for _, t := range []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS} {
		answer.Capabilities = append(answer.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}}})
	}
	return answer, nil
}

func (nodesDriver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME, csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}}})
	}
	return answer, nil
}

// CreateVolume uses the source's node, or the first preferred one with free space.
func (d nodesDriver) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	capability := r.GetVolumeCapabilities()[0]
	switch mode := capability.GetAccessMode().GetMode(); mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
	default:
		return nil, status.Errorf(codes.InvalidArgument, "access mode %s", mode)
	}
	ask := &lvmdv1.CreateVolumeRequest{Name: r.GetName(), RequiredBytes: r.GetCapacityRange().GetRequiredBytes(),
		Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM, FsType: capability.GetMount().GetFsType()}
	if capability.GetBlock() != nil {
		ask.Mode = lvmdv1.VolumeMode_VOLUME_MODE_BLOCK
	}
	var nodes []string
	for _, topology := range r.GetAccessibilityRequirements().GetPreferred() {
		nodes = append(nodes, topology.GetSegments()[names.TopologyNode])
	}
	if source := r.GetVolumeContentSource().GetSnapshot(); source != nil {
		node, id, _ := spec.ParseSnapshotHandle(source.GetSnapshotId())
		nodes, ask.Source = []string{node}, &lvmdv1.VolumeSource{SnapshotId: id}
	}
	if source := r.GetVolumeContentSource().GetVolume(); source != nil {
		nodes, ask.Source = []string{d.nodeOf(source.GetVolumeId())}, &lvmdv1.VolumeSource{VolumeId: source.GetVolumeId()}
	}
	err := status.Error(codes.ResourceExhausted, "no node")
	for _, node := range nodes {
		var made *lvmdv1.CreateVolumeResponse
		if made, err = d.nodes[node].CreateVolume(ctx, ask); err == nil {
			return &csi.CreateVolumeResponse{Volume: &csi.Volume{
				VolumeId: made.GetVolume().GetId(), CapacityBytes: made.GetVolume().GetSizeBytes(), ContentSource: r.GetVolumeContentSource(),
				VolumeContext:      map[string]string{names.ContextDeviceClass: made.GetVolume().GetDeviceClass()},
				AccessibleTopology: []*csi.Topology{{Segments: map[string]string{names.TopologyNode: node}}},
			}}, nil
		}
		if status.Code(err) != codes.ResourceExhausted {
			break
		}
	}
	return nil, err
}

func (d nodesDriver) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if node := d.nodeOf(r.GetVolumeId()); node != "" {
		if _, err := d.nodes[node].DeleteVolume(ctx, &lvmdv1.DeleteVolumeRequest{Id: r.GetVolumeId()}); err != nil {
			return nil, err
		}
	}
	return &csi.DeleteVolumeResponse{}, nil
}

func (d nodesDriver) nodeOf(id string) string {
	for name, node := range d.nodes {
		for _, v := range node.Volumes() {
			if v.GetId() == id {
				return name
			}
		}
	}
	return ""
}
