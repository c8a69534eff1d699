package csiservice

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"k8s.io/utils/lru"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/csisocket"
	"github.com/carve-csi/carve/pkg/iolimit"
	"github.com/carve-csi/carve/pkg/scheduler"
)

// Desired is what a CreateVolume asks for, checked as far as CSI goes.
type Desired struct {
	Name string
	// Bytes is at least 1, LimitBytes 0 for no limit.
	Bytes, LimitBytes int64
	Block             bool
	// FSType is empty where the request names none.
	FSType string
	// MountFlags are those of all capabilities.
	MountFlags []string
	Parameters map[string]string
	// IOLimits count in place of those of the parameters where there are mutable ones.
	IOLimits *iolimit.Limits
}

// Options configure a Service. All are required.
type Options struct {
	Ledger    *scheduler.Ledger
	Available *cluster.Availability
	// IDs knows which volume has which id.
	IDs *cluster.IDs
	// Request turns a desired into lvmd's request, by the meaning of its
	// parameters, and says how nodes are preferred. Its errors are about the
	// desired.
	Request func(Desired) (*lvmdv1.CreateVolumeRequest, scheduler.Policy, error)
	// Ready says why calls cannot be served yet.
	Ready func(context.Context) error
	// Answered is called with every call that was answered: the full name of the RPC, the
	// gRPC status, and how long it took.
	Answered func(method string, err error, took time.Duration)
	Version  string
	Log      *slog.Logger
}

// Service is the CSI Controller and Identity services. All methods may be
// called concurrently.
type Service struct {
	csi.UnimplementedControllerServer
	csi.UnimplementedIdentityServer
	*cluster.Cluster
	o Options

	mu   sync.Mutex
	busy map[string]struct{} // names that are being created
	// inFlight are the nodes that may hold a volume of that name without our knowing. An
	// entry ends when the node says yes or no, or is not in the cluster any more.
	inFlight map[string]string
	// failedOn are the nodes on which the volume of that name failed first; the names of
	// longest ago are forgotten.
	failedOn *lru.Cache
}

// failuresKept is how many names of volumes that could not be made are known.
const failuresKept = 1024

// New makes the service.
func New(c *cluster.Cluster, o Options) *Service {
	return &Service{Cluster: c, o: o, busy: map[string]struct{}{}, inFlight: map[string]string{}, failedOn: lru.New(failuresKept)}
}

// Serve serves on the listener until ctx is done, then lets calls under way
// end, for a while.
func (s *Service) Serve(ctx context.Context, listener net.Listener) error {
	server := grpc.NewServer(grpc.UnaryInterceptor(s.intercept))
	csi.RegisterIdentityServer(server, s)
	csi.RegisterControllerServer(server, s)
	if err := csisocket.Serve(ctx, server, listener); err != nil {
		return fmt.Errorf("serve CSI: %w", err)
	}
	return nil
}

// intercept gives every error its code, and logs what failed.
func (s *Service) intercept(ctx context.Context, r any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	begin := time.Now()
	answer, err := handler(ctx, r)
	err = Status(err)
	s.o.Answered(info.FullMethod, err, time.Since(begin))
	if err != nil {
		s.o.Log.Info("call failed", "method", info.FullMethod, "error", err)
		return nil, err
	}
	return answer, nil
}

// GetPluginInfo names the driver.
func (s *Service) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: names.Driver, VendorVersion: s.o.Version}, nil
}

// GetPluginCapabilities says that there is a controller, that volumes are tied
// to nodes, and that they can be grown while they are in use.
func (s *Service) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	service := func(t csi.PluginCapability_Service_Type) *csi.PluginCapability {
		return &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}}}
	}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		service(csi.PluginCapability_Service_CONTROLLER_SERVICE),
		service(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS),
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{
			Type: csi.PluginCapability_VolumeExpansion_ONLINE}}},
	}}, nil
}

// Probe reports whether calls can be served.
func (s *Service) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(s.o.Ready(ctx) == nil)}, nil
}

var capabilities = []csi.ControllerServiceCapability_RPC_Type{
	csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
	csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
	csi.ControllerServiceCapability_RPC_GET_VOLUME,
	csi.ControllerServiceCapability_RPC_GET_CAPACITY,
	csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
	csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
	csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
	csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
	csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
	csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
	csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
}

// ControllerGetCapabilities lists what the service can do.
func (s *Service) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, c := range capabilities {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: c}},
		})
	}
	return answer, nil
}
