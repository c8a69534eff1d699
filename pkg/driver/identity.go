package driver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/carve-csi/carve/api/names"
)

// Identity is the node plugin's CSI identity service.
type Identity struct {
	csi.UnimplementedIdentityServer

	version string
	ready   func(context.Context) error
}

// NewIdentity returns the identity service. ready returns why the plugin cannot
// stage volumes yet, or nil.
func NewIdentity(version string, ready func(context.Context) error) *Identity {
	return &Identity{version: version, ready: ready}
}

// GetPluginInfo returns the driver's name and version.
func (i *Identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: names.Driver, VendorVersion: i.version}, nil
}

// GetPluginCapabilities reports that volumes are tied to nodes and can be
// expanded online.
func (i *Identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS}}},
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{
			Type: csi.PluginCapability_VolumeExpansion_ONLINE}}},
	}}, nil
}

// Probe reports whether the plugin is ready to stage volumes.
func (i *Identity) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(i.ready(ctx) == nil)}, nil
}
