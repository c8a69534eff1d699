package driver

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/csisocket"
)

// maxMessage bounds what the kubelet can make the plugin read at once, in
// bytes.
const maxMessage = 1 << 20

// Plugin is the services and where they are to be reached.
type Plugin struct {
	// CSISocket is the unix socket of the Identity and Node services.
	CSISocket string
	// RegistrationDir is the directory that the kubelet watches for plugins.
	// Empty: the plugin is not registered.
	RegistrationDir string

	Identity     csi.IdentityServer
	Node         csi.NodeServer
	Registration *Registration
	Metrics      *Metrics
	Log          *slog.Logger
}

// Serve serves until ctx is done, then stops within a few seconds: the
// registration first, so that the kubelet sends nothing new, then CSI, where
// calls under way may end. Both sockets are gone when it returns.
func (p Plugin) Serve(ctx context.Context) error {
	// CSI listens before the kubelet can hear of it, and longer.
	listener, err := csisocket.Listen(ctx, p.CSISocket)
	if err != nil {
		return fmt.Errorf("CSI socket: %w", err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(interceptor(p.Log, p.Metrics)), grpc.MaxRecvMsgSize(maxMessage))
	csi.RegisterIdentityServer(server, p.Identity)
	csi.RegisterNodeServer(server, p.Node)

	group, groupCtx := errgroup.WithContext(ctx)
	csiCtx, stopCSI := context.WithCancel(context.WithoutCancel(ctx))
	defer stopCSI()
	group.Go(func() error {
		if err := csisocket.Serve(csiCtx, server, listener); err != nil {
			return fmt.Errorf("serve CSI: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		defer stopCSI()
		return p.register(groupCtx)
	})
	return group.Wait()
}

// Healthy fails unless the kubelet can still find the plugin: something may have
// cleared the directories of its sockets, and only a new start brings them
// back. Before Serve has begun to listen it is not healthy.
func (p Plugin) Healthy(context.Context) error {
	sockets := []string{p.CSISocket}
	if p.RegistrationDir != "" {
		sockets = append(sockets, p.registrationSocket())
	}
	for _, path := range sockets {
		if _, err := os.Lstat(path); err != nil {
			return fmt.Errorf("socket: %w", err)
		}
	}
	return nil
}

func (p Plugin) registrationSocket() string {
	return filepath.Join(p.RegistrationDir, names.Driver+"-reg.sock")
}

// register serves the registration until ctx is done.
func (p Plugin) register(ctx context.Context) error {
	if p.RegistrationDir == "" {
		<-ctx.Done()
		return nil
	}
	for ctx.Err() == nil {
		if err := p.registerOnce(ctx); err != nil {
			return err
		}
	}
	return nil
}

// registerOnce serves the registration until ctx is done, or the kubelet is to register the plugin
// again, which it does when it finds another socket in the place of the one that it knew.
func (p Plugin) registerOnce(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-p.Registration.again:
			stop()
		case <-ctx.Done():
		}
	}()
	listener, err := csisocket.Listen(ctx, p.registrationSocket())
	if err != nil {
		return fmt.Errorf("registration socket: %w", err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage))
	registerapi.RegisterRegistrationServer(server, p.Registration)
	if err := csisocket.Serve(ctx, server, listener); err != nil {
		return fmt.Errorf("serve registration: %w", err)
	}
	return nil
}
