package drivertest

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
)

// Controller is a minimal CSI controller service over one lvmd, without checks.
type Controller struct {
	csi.UnimplementedControllerServer

	LVMD lvmdv1.LVMDServer
	// DeviceClass is the class of new volumes; empty means the default.
	DeviceClass string
}

// ControllerGetCapabilities reports creation, deletion and expansion.
func (c *Controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return answer, nil
}

// CreateVolume creates a volume for the first capability only.
func (c *Controller) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	ask := &lvmdv1.CreateVolumeRequest{
		Name: r.GetName(), DeviceClass: c.DeviceClass, RequiredBytes: r.GetCapacityRange().GetRequiredBytes(),
		Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM,
	}
	if r.GetVolumeCapabilities()[0].GetBlock() != nil {
		ask.Mode = lvmdv1.VolumeMode_VOLUME_MODE_BLOCK
	}
	ask.FsType = r.GetVolumeCapabilities()[0].GetMount().GetFsType()
	got, err := c.LVMD.CreateVolume(ctx, ask)
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId: got.GetVolume().GetId(), CapacityBytes: got.GetVolume().GetSizeBytes(),
		AccessibleTopology: []*csi.Topology{{Segments: map[string]string{names.TopologyNode: NodeName}}},
	}}, nil
}

// DeleteVolume deletes a volume.
func (c *Controller) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	_, err := c.LVMD.DeleteVolume(ctx, &lvmdv1.DeleteVolumeRequest{Id: r.GetVolumeId()})
	return &csi.DeleteVolumeResponse{}, err
}

// ControllerExpandVolume grows a volume.
func (c *Controller) ControllerExpandVolume(ctx context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	got, err := c.LVMD.ExpandVolume(ctx, &lvmdv1.ExpandVolumeRequest{
		Id: r.GetVolumeId(), RequiredBytes: r.GetCapacityRange().GetRequiredBytes(),
	})
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: got.GetVolume().GetSizeBytes(), NodeExpansionRequired: true}, err
}

// WithController is an identity that claims a controller service.
type WithController struct{ csi.IdentityServer }

// GetPluginCapabilities implements the service.
func (w WithController) GetPluginCapabilities(ctx context.Context, r *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	answer, err := w.IdentityServer.GetPluginCapabilities(ctx, r)
	answer.Capabilities = append(answer.Capabilities, &csi.PluginCapability{
		Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}},
	})
	return answer, err
}
